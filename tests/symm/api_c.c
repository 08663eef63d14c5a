/* The header is C's too. */
#include "verbena/verbena.h"

int count_results_in_c(void);
int count_results_in_c(void) {
  int count = 0;
  for (int result = VERBENA_SUCCESS; result <= VERBENA_TIMEOUT; ++result)
    if (verbena_describe((verbena_result)result)[0] != '\0') ++count;
  return count;
}
