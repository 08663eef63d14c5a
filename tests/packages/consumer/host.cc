// Uses the C++ interface like another project's program: a context of one rank.
#include <cstdio>
#include <verbena/verbena.hpp>

int main() {
  verbena_unique_id id;
  verbena::check(verbena_get_unique_id(&id));
  verbena::SymmetricContext context(id, 0, 1);
  const verbena::SymmetricWindow window = context.allocate(4096);
  context.barrier();
  std::printf("C++: a window of %zu bytes\n", window.length_bytes());
}
