/* The headers are C's too. */
#include "verbena/message_queue.h"
#include "verbena/ranks.h"

size_t measure_handle_in_c(void);
size_t measure_handle_in_c(void) {
  return sizeof(verbena_queue_handle);
}
