/* The C interface, as somebody else's program has it: a context of one rank. */
#include <stdio.h>
#include <verbena/verbena.h>

int main(void) {
  verbena_unique_id id;
  verbena_context* context = NULL;
  verbena_window* window = NULL;
  verbena_result result = verbena_get_unique_id(&id);
  if (result == VERBENA_SUCCESS) result = verbena_context_create(&id, 0, 1, &context);
  if (result == VERBENA_SUCCESS) result = verbena_window_allocate(context, 4096, &window);
  if (result == VERBENA_SUCCESS) result = verbena_context_barrier(context);
  if (result != VERBENA_SUCCESS) {
    fprintf(stderr, "%s: %s\n", verbena_describe(result), verbena_last_error());
    return 1;
  }
  printf("C: a window of %zu bytes\n", verbena_window_length(window));
  return verbena_context_destroy(context) == VERBENA_SUCCESS ? 0 : 1;
}
