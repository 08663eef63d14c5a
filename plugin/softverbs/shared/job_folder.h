// The folders that the processes of one user share, one folder for each job. Finds out which processes use a
// folder, and removes it after all processes of the job were killed. The library and its copier use this
// file.
#pragma once

#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

namespace verbena::softverbs {

// Returns the possible locations of a job's folder. If `chosen` (SOFTVERBS_DIR) is not empty, the only
// location is `chosen`. Otherwise the locations are /dev/shm and, if another user has taken the name there,
// the user's /run/user.
std::vector<std::string> list_parents(const std::string& chosen);
// Returns the name of the folder without the part for the job.
std::string make_folder_name();

// Opens a folder only if it belongs to this user. Returns -1, with errno, on failure; errno is EPERM if the
// folder belongs to another user.
int open_folder(int parent, const char* name);
constexpr char kTable[] = "processes";
// Opens the table of processes in a folder of this user; returns -1 with errno on failure.
int open_table(int folder, int flags);

// Returns whether the open table is the file in the folder, and not a file that has been removed.
bool is_table_of(int table, int folder);

// Locks a byte of the file to show that this process is alive. Processes of other pid namespaces also see the
// lock, although they cannot look up the process id. The lock belongs to the open file, and ends with the
// file's last holder, even if this process is killed.
bool lock_life(int table);

struct JobFolder {
  int parent;        // the folder that contains this folder, or AT_FDCWD
  const char* name;  // in `parent`
  int folder, table;
  bool is_near;  // the job's processes are in this pid namespace, so their ids can be looked up
};
// Removes the folder if no process uses the folder. Locks the table only if no process uses the folder, so a
// process that is stopped here delays only processes that start in a job without processes.
void remove_unused(const JobFolder& job);

// Removes the files of jobs whose processes were all killed, in this pid namespace or in another one, such as
// a container's. Other users may be able to write to `parent`, so only files that belong to this user and
// that no other user may change are touched.
void sweep(const std::string& parent);

// Returns pid and start time of a process in one word; 0 if there is no such process or it is a zombie; 0 and
// errno if this cannot be determined.
uint64_t read_owner(int pid);
inline int get_pid(uint64_t owner) {
  return static_cast<int>(owner & 0x3fffff);
}
// Returns whether a process is alive. Also returns true if this cannot be determined because no descriptor is
// left: the resources of a live process must not be taken.
inline bool is_alive(uint64_t owner) {
  if (owner == 0) return false;
  const uint64_t present = read_owner(get_pid(owner));
  return present == owner || (present == 0 && errno != 0);
}

}  // namespace verbena::softverbs
