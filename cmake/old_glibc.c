/* Functions of newer glibc that gcc 12's static libstdc++ and libgcc, and the plugin, call: linked into each binary of the wheel, which is
 * linked against an older glibc (cmake/old_glibc.cmake). Hidden: a process with a newer glibc keeps its own for all others. */
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

/* 2.32. Never: locked operations are right in a process with one thread too. */
char __libc_single_threaded = 0;

/* 2.32. */
const char* sigabbrev_np(int number) {
  static const char* const names[] = {
      0,      "HUP",  "INT",    "QUIT", "ILL",  "TRAP", "ABRT", "BUS",  "FPE", "KILL", "USR1", "SEGV",   "USR2", "PIPE",  "ALRM", "TERM",
      "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",  "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "POLL", "PWR",  "SYS"};
  return number > 0 && number < (int)(sizeof(names) / sizeof(*names)) ? names[number] : 0;
}

/* 2.36. The kernel has randomness since it has started; getrandom() fails only if a filter of system calls refuses it. */
uint32_t arc4random(void) {
  uint32_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number)) abort();
  return number;
}

/* 2.35. The unwinder asks it for an address's table, and before it there was dl_iterate_phdr(), as here. */
typedef struct {
  ElfW(Addr) address;
  struct dl_find_object* found;
} Search;

static int look_into(struct dl_phdr_info* object, size_t size, void* of) {
  Search* const search = of;
  ElfW(Addr) begin = 0, end = 0;
  void* table = 0;
  (void)size;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)* const part = &object->dlpi_phdr[i];
    const ElfW(Addr) address = object->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_GNU_EH_FRAME) table = (void*)address;
    if (part->p_type == PT_LOAD && search->address - address < part->p_memsz) {
      begin = address;
      end = address + part->p_memsz;
    }
  }
  if (end == 0 || table == 0) return 0;
  search->found->dlfo_flags = 0;
  search->found->dlfo_map_start = (void*)begin;
  search->found->dlfo_map_end = (void*)end;
  search->found->dlfo_link_map = 0;
  search->found->dlfo_eh_frame = table;
  return 1;
}

int _dl_find_object(void* address, struct dl_find_object* found) {
  Search search = {(ElfW(Addr))address, found};
  return dl_iterate_phdr(look_into, &search) != 0 ? 0 : -1;
}
