/* Access to files of a job's views without kernel calls.
 *
 * cc program.c $(pkg-config --cflags --libs tameike)
 *
 * In a job of Tameike, calls on files of its views go to the node's agent through shared memory. Elsewhere, and for calls that
 * the agent leaves to the kernel, the library makes system calls, so that each function works on every path. The library prints
 * nothing and never ends the program. A failed call returns a negative number of errno.h: -EIO if the agent has failed, and
 * -ENOTCONN for later calls.
 *
 * Any number of threads may call the functions concurrently, but only one at a time for each request; signal handlers may not.
 * In a child of fork(), files and requests of the parent fail with -EIO: the child must open its own. Files opened with
 * tameike_open() have the semantics of SEMANTICS.md for all programs, as with system calls.
 *
 * The functions tameike_agg_*() store many small files in a few large ones, in a container, on any file system and without an
 * agent. Any number of processes write to a container concurrently, each to its own files. tameike_agg_message() describes the
 * last error.
 *
 * The functions tameike_dsm_*() share memory between processes on all nodes of a job, and tameike_win_*() give each process memory that
 * all others read and write. They need an agent.
 */

#ifndef TAMEIKE_H
#define TAMEIKE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// Flag of tameike_dsm_create() and tameike_dsm_attach(): detect accesses by mprotect(2) instead of userfaultfd(2). Each process then has
// memory of its own. It is the default if the kernel lacks userfaultfd for shared memory (Linux before 5.19), or if the environment
// variable TAMEIKE_DSM is "mprotect".
#define TAMEIKE_DSM_MPROTECT 1

// Flag of tameike_dsm_create() and tameike_dsm_attach(), which all processes of the region must pass or none: two nodes never store to the
// same page of 4096 bytes, unless there is a barrier in between, or a flush on the first node and then an update on the second one. Stores
// cost less then: the kernel records which pages are written to (Linux 6.7; older kernels ignore the flag), and whole pages are sent. An
// update copies changes of others into all pages that the node has, and the pages are not evicted. No process may store to a page with a number
// of tameike_dsm_fetch_add(). If a process is killed, its stores since its last flush or barrier are not in the file.
#define TAMEIKE_DSM_ONE_WRITER 2

// Comparison of tameike_win_wait_until() and tameike_win_test(): the word is equal to the value.
#define TAMEIKE_WIN_EQ 0

// Comparison: the word is not equal to the value.
#define TAMEIKE_WIN_NE 1

// Comparison: the word is greater than the value.
#define TAMEIKE_WIN_GT 2

// Comparison: the word is greater than or equal to the value.
#define TAMEIKE_WIN_GE 3

// Comparison: the word is less than the value.
#define TAMEIKE_WIN_LT 4

// Comparison: the word is less than or equal to the value.
#define TAMEIKE_WIN_LE 5

// Operation of tameike_win_put_signal(): store the signal in the word.
#define TAMEIKE_WIN_SET 0

// Operation of tameike_win_put_signal(): add the signal to the word.
#define TAMEIKE_WIN_ADD 1

// An open container of many files.
typedef struct tameike_agg tameike_agg;

// An open file of a container.
typedef struct tameike_agg_file tameike_agg_file;

// An open list of the names in a directory of a container.
typedef struct tameike_agg_list tameike_agg_list;

// An open file.
typedef struct tameike_file tameike_file;

// A shared memory region.
typedef struct tameike_dsm tameike_dsm;

// A request in progress.
typedef struct tameike_request tameike_request;

// A remote memory window.
typedef struct tameike_win tameike_win;

// A range of a file, and the memory for it.
typedef struct {
  // Offset in the file, in bytes.
  uint64_t offset;
  // Address in memory. Writes only read it.
  void *memory;
  // Size in bytes.
  size_t size;
} tameike_piece;

// A time.
typedef struct {
  // Seconds since the beginning of 1970.
  int64_t seconds;
  // Less than 1,000,000,000.
  uint32_t nanoseconds;
} tameike_time;

// Attributes, as in stat(2) without the device.
typedef struct {
  // Inode number within the view.
  uint64_t ino;
  // Size in bytes.
  uint64_t size;
  // Allocated blocks of 512 bytes.
  uint64_t blocks;
  // Time of the last read.
  tameike_time atime;
  // Time of the last write.
  tameike_time mtime;
  // Time of the last change of attributes.
  tameike_time ctime;
  // File type and permissions.
  uint32_t mode;
  // Number of links.
  uint32_t nlink;
  // User ID of the owner.
  uint32_t uid;
  // Group ID.
  uint32_t gid;
  // Device number of a device file.
  uint64_t rdev;
  // Preferred I/O size in bytes.
  uint32_t blksize;
} tameike_status;

// Options of a process that opens a container. Most programs set `rank` to -1, and all others to 0.
typedef struct {
  // Number of this process among `size` ones, unique and from 0 on. With -1, the library uses the environment of Open MPI, MPICH, PMIx
  // or Slurm; without these, any number of processes may use the container.
  int32_t rank;
  // Number of processes.
  uint32_t size;
  // Block size of a new container in bytes: a power of two from 4096 to 67108864, best the stripe size of the file system. With 0,
  // the library chooses at least 4 MiB, at least 16 MiB if several processes share a file, and 64 MiB (the chunk size) on MooseFS.
  uint32_t block_size;
  // Number of files of a new container, which the ranks share: best the number of storage targets; 0 selects up to 8.
  uint32_t subfiles;
  // Compression of data that this process writes: 0 for none, 1 for Zstandard if that saves space.
  uint32_t compression;
  // Nonzero if all processes open and finalize the container together, rank 0 as the first and the last one. Then each has its part of
  // the container from the beginning, and only rank 0 writes the index. tameike_agg_initialize_mpi() sets it. A single rank writes to up
  // to five files concurrently, with threads, and buffers up to ten blocks, or 16 MiB of larger ones.
  uint32_t is_collective;
  // For collective use: the result of tameike_agg_known() on rank 0, or null. With it, other ranks open only those files of the
  // container that they need, and the index only if it is large.
  const void *known;
  // Size of `known` in bytes.
  size_t known_size;
} tameike_agg_options;

// Counters of a region, of all processes of this node together; with TAMEIKE_DSM_MPROTECT, of this process.
typedef struct {
  // Accesses to pages that the node did not have.
  uint64_t read_faults;
  // First writes to pages after they were fetched.
  uint64_t write_faults;
  // Pages fetched from other nodes or the device.
  uint64_t pages_fetched;
  // Changed pages that were sent to their homes.
  uint64_t pages_flushed;
  // Changed bytes that were sent to their homes.
  uint64_t bytes_flushed;
  // Pages that were dropped because another node had changed them.
  uint64_t pages_dropped;
  // Written pages into which changes of other nodes were merged.
  uint64_t pages_merged;
  // Barriers that all processes of the node have called.
  uint64_t barriers;
  // Pages that were removed from memory, because the regions of the node exceeded their memory.
  uint64_t pages_evicted;
  // Number of pages of the region.
  uint64_t pages;
  // How accesses are detected: TAMEIKE_DSM_MPROTECT, or TAMEIKE_DSM_ONE_WRITER if the kernel records written pages, or 0.
  uint32_t mechanism;
} tameike_dsm_counters;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens a file like open(2), with O_CLOEXEC. `mode` applies with O_CREAT. Close `*file` with tameike_close().
// Returns 0 or a negative errno.
int tameike_open(const char *path, int flags, unsigned int mode, tameike_file **file);

// Closes a file, and returns what close(2) returns, including errors of earlier writes. The file is closed even on an error, except
// -EBUSY: a request on it has not been waited for. Returns 0 or a negative errno.
int tameike_close(tameike_file *file);

// Reads at an offset. Returns the number of bytes, less than `size` only at the end of the file, or a negative errno.
ssize_t tameike_read(tameike_file *file, void *memory, size_t size, uint64_t offset);

// Writes at an offset, or at the end of a file that was opened with O_APPEND. Returns the number of bytes or a negative errno. The
// number is less than `size` only if the rest failed: the next call returns the error.
ssize_t tameike_write(tameike_file *file,
                      const void *memory,
                      size_t size,
                      uint64_t offset);

// Reads pieces, several at the same time. Returns the number of bytes up to and including the first short piece, or a negative errno
// if the first piece failed.
ssize_t tameike_read_list(tameike_file *file,
                          const tameike_piece *pieces,
                          size_t count);

// Writes pieces, several at the same time. They must not overlap in the file. Returns as tameike_read_list().
ssize_t tameike_write_list(tameike_file *file, const tameike_piece *pieces, size_t count);

// Starts to read pieces. The program must not access their memory until tameike_wait() on `*request` has returned the end.
// Returns 0 or a negative errno.
int tameike_submit_read(tameike_file *file,
                        const tameike_piece *pieces,
                        size_t count,
                        tameike_request **request);

// Starts to write pieces, as tameike_submit_read(). They are written in any order, and must not overlap.
int tameike_submit_write(tameike_file *file, const tameike_piece *pieces, size_t count, tameike_request **request);

// Waits for the end of a request: 0 milliseconds do not wait, a negative number waits without limit. Only a waiting program starts
// further pieces; up to twelve are in flight in between, of all requests of the process together. Returns as tameike_read_list(), and
// frees the request; or returns -EINPROGRESS, and the request continues.
ssize_t tameike_wait(tameike_request *request,
                     int milliseconds);

// Reads the attributes of an open file. Returns 0 or a negative errno.
int tameike_fstat(tameike_file *file, tameike_status *status);

// Reads the attributes of a file by path, following symbolic links. Returns 0 or a negative errno.
int tameike_stat(const char *path, tameike_status *status);

// As tameike_stat(), for a symbolic link itself.
int tameike_lstat(const char *path, tameike_status *status);

// Truncates or extends a file to `size` bytes. Returns 0 or a negative errno.
int tameike_ftruncate(tameike_file *file, uint64_t size);

// Syncs a file like fsync(2). Returns 0 or a negative errno.
int tameike_fsync(tameike_file *file);

// Returns a kernel descriptor of the file, for calls that this library does not have (mmap, locks), or a negative errno. From then on,
// all calls on the file use the kernel. tameike_close() closes the descriptor.
int tameike_descriptor(tameike_file *file);

// Removes a name of a file like unlink(2). Returns 0 or a negative errno.
int tameike_unlink(const char *path);

// Creates a directory like mkdir(2). Returns 0 or a negative errno.
int tameike_mkdir(const char *path, unsigned int mode);

// Renames a file like renameat2(2), with its flags. Returns 0 or a negative errno.
int tameike_rename(const char *from, const char *to, unsigned int flags);

// Opens a container, which is a directory: with O_RDONLY, or with O_RDWR to write to it; O_CREAT creates it if it is missing. `options`
// may be null. Any number of processes on any nodes may open it at the same time. Each must open it itself, including children of fork().
// Close `*container` with tameike_agg_finalize(). Returns 0 or a negative errno.
int tameike_agg_initialize(const char *dir,
                           int flags,
                           const tameike_agg_options *options,
                           tameike_agg **container);

// Closes a container, and makes all written data durable. The last of all processes writes the index, with which later opens are fast.
// Files and lists must be closed before, otherwise it fails with -EBUSY. On any other error, data may not be durable, and the container
// is closed. Returns 0 or a negative errno.
int tameike_agg_finalize(tameike_agg *container);

// Makes all data written to a container durable, including that of open files. Other processes see it after tameike_agg_refresh().
// Returns 0 or a negative errno.
int tameike_agg_sync(tameike_agg *container);

// Makes changes by other processes visible. Lookups of missing names do so automatically; changed files are visible only after this call.
// Returns 0 or a negative errno.
int tameike_agg_refresh(tameike_agg *container);

// Returns a message for the last failed call on a container in this thread, or an empty string if none has failed. It is valid until the
// next call fails.
const char *tameike_agg_message(void);

// On rank 0, returns the state of a container that it has just opened, for `known` in the options of the other ranks, which open it
// afterwards. Writes to `known` only if `size` bytes suffice; `known` may be null if `size` is 0. Returns the size of the state (at most a
// few bytes more than 1 MiB), or 0 if other ranks must read the container themselves, or a negative errno.
ssize_t tameike_agg_known(tameike_agg *container,
                          void *known,
                          size_t size);

// As tameike_agg_finalize(), and returns a report of what this process has written, for tameike_agg_take_report() of the process that
// finalizes last. `*report` has `*size` bytes, and must be freed with free(); null and 0 if there is none. Returns 0 or a negative errno.
int tameike_agg_finalize_reporting(tameike_agg *container,
                                   void **report,
                                   size_t *size);

// Takes the report of another process, so that this process, which finalizes last and writes the index, need not read what the other has
// written. Returns 0 or a negative errno: -EINVAL for an invalid report.
int tameike_agg_take_report(tameike_agg *container,
                            const void *report,
                            size_t size);

// Opens a file of a container like open(2). `path` is relative to the container's root. Missing directories of the path are created.
// Links are followed within the container. O_EXCL considers only files that this process knows. Close `*file` with tameike_agg_close().
// Returns 0 or a negative errno.
int tameike_agg_open(tameike_agg *container,
                     const char *path,
                     int flags,
                     unsigned int mode,
                     tameike_agg_file **file);

// Creates or truncates a file, and opens it for reading and writing: tameike_agg_open() with O_RDWR, O_CREAT and O_TRUNC. It does not
// check for files of other processes, so that any number of processes can create different files concurrently.
int tameike_agg_create(tameike_agg *container,
                       const char *path,
                       unsigned int mode,
                       tameike_agg_file **file);

// Closes a file, and stores it in the container; the next sync makes it durable. The file is closed even on an error; tameike_agg_sync()
// and tameike_agg_finalize() then retry to store it. Returns 0 or a negative errno.
int tameike_agg_close(tameike_agg_file *file);

// Reads at the file's position, and advances it. Returns the number of bytes, less than `size` only at the end of the file, or a
// negative errno.
ssize_t tameike_agg_read(tameike_agg_file *file,
                         void *memory,
                         size_t size);

// Writes at the file's position, or at the end with O_APPEND, and advances it. Writes all bytes or fails. Returns the number of bytes or a
// negative errno.
ssize_t tameike_agg_write(tameike_agg_file *file,
                          const void *memory,
                          size_t size);

// Reads at an offset. Returns the number of bytes, less than `size` only at the end of the file, or a negative errno.
ssize_t tameike_agg_pread(tameike_agg_file *file, void *memory, size_t size, uint64_t offset);

// Writes at an offset, or at the end with O_APPEND. Writes all bytes or fails. Returns the number of bytes or a negative errno.
ssize_t tameike_agg_pwrite(tameike_agg_file *file,
                           const void *memory,
                           size_t size,
                           uint64_t offset);

// Moves the position of a file like lseek(2) with SEEK_SET, SEEK_CUR and SEEK_END. Returns the position or a negative errno.
int64_t tameike_agg_lseek(tameike_agg_file *file,
                          int64_t offset,
                          int whence);

// Sets the size of a file. Returns 0 or a negative errno.
int tameike_agg_ftruncate(tameike_agg_file *file, uint64_t size);

// Makes an open file durable, and all files that this process has closed before. Returns 0 or a negative errno.
int tameike_agg_fsync(tameike_agg_file *file);

// Reads the attributes of an open file. Returns 0 or a negative errno.
int tameike_agg_fstat(tameike_agg_file *file, tameike_status *status);

// Reads attributes by path, following links within the container. Returns 0 or a negative errno.
int tameike_agg_stat(tameike_agg *container, const char *path, tameike_status *status);

// Creates a directory, and missing directories of its path. Returns 0 or a negative errno.
int tameike_agg_mkdir(tameike_agg *container, const char *path, unsigned int mode);

// Removes an empty directory. Returns 0 or a negative errno.
int tameike_agg_rmdir(tameike_agg *container, const char *path);

// Removes a file. Processes that have it open can use it until they close it. Returns 0 or a negative errno.
int tameike_agg_unlink(tameike_agg *container, const char *path);

// Renames a file or a directory. Replaces a file or an empty directory of the new name. Returns 0 or a negative errno.
int tameike_agg_rename(tameike_agg *container, const char *from, const char *to);

// Lists a directory in its current state. Close `*list` with tameike_agg_closedir(). Returns 0 or a negative errno.
int tameike_agg_opendir(tameike_agg *container, const char *path, tameike_agg_list **list);

// Returns the next name of a list, sorted by name, and its file type as in a `mode` in `*kind`, unless that is null. The name is valid
// until the list is closed. Returns 1, or 0 at the end, or a negative errno.
int tameike_agg_readdir(tameike_agg_list *list,
                        const char **name,
                        uint32_t *kind);

// Closes a list. Returns 0 or a negative errno.
int tameike_agg_closedir(tameike_agg_list *list);

// Creates a shared memory region, and attaches to it: memory that processes on all nodes share, with the content of the file `path` in the
// job-shared view. All processes of a parallel program may call it at the same time; the file gets `size` bytes, rounded up to pages of
// 4096 bytes, and mode 0600. An existing file of that size is used with its content. Space for the file is reserved.
//
// Loads and stores access the memory at tameike_dsm_address(). Two nodes may change different bytes of a page. A node sees its own stores at
// once, and those of other nodes after barriers, or after tameike_dsm_flush() there and then tameike_dsm_update() here. If two nodes
// change the same byte in between, one of the values stays.
//
// `processes` is the number of processes that take part in barriers; all must pass the same. With 0, it is the number of ranks according to
// the environment of Open MPI, MPICH, PMIx or Slurm, or else 1. `flags` is 0, or TAMEIKE_DSM_MPROTECT or TAMEIKE_DSM_ONE_WRITER, or both.
//
// Returns 0 or a negative errno: -EEXIST if the file has another size, -EINVAL for a size of 0 or above 16 TiB, -ENOSPC, -EOPNOTSUPP
// without an agent or outside the job-shared view, -EBUSY if all processes are attached, or the kernel of this node has the file open, -EINVAL
// if others have passed another number of processes or TAMEIKE_DSM_ONE_WRITER differently, and -EPIPE if a process of the region has ended and others are still attached after
// 5 seconds.
int tameike_dsm_create(const char *path,
                       uint64_t size,
                       unsigned int processes,
                       unsigned int flags,
                       tameike_dsm **region);

// Attaches to the region of an existing file, as tameike_dsm_create(). Returns 0 or a negative errno: -ENOENT if the file does not exist,
// -EINVAL if it is empty.
int tameike_dsm_attach(const char *path,
                       unsigned int processes,
                       unsigned int flags,
                       tameike_dsm **region);

// Returns the address of a region, or null in a child of fork(), which does not have the memory. The first access to a page fetches it.
// If that fails, the process gets SIGBUS, as with a mapped file. A system call on a page that is not there fails with EFAULT:
// call tameike_dsm_touch() before. The library handles SIGBUS and SIGSEGV, and passes those of other addresses to the handlers that were
// there when the process attached to its first region.
void *tameike_dsm_address(tameike_dsm *region);

// Returns the size of a region in bytes, in whole pages.
uint64_t tameike_dsm_size(tameike_dsm *region);

// Sends all bytes that processes of this node have changed to the homes of the file. They are in the file then, and other nodes see them
// after tameike_dsm_update(). Returns 0 or a negative errno.
int tameike_dsm_flush(tameike_dsm *region);

// Makes changes visible that other nodes have flushed. Returns 0 or a negative errno.
int tameike_dsm_update(tameike_dsm *region);

// Waits until all processes of a region have called it. Each sees then what the others stored before. Up to six threads of a process
// are in barriers of different regions at the same time; further ones wait for these. Returns 0 or a negative errno: -EOWNERDEAD or
// -EPIPE if a process has ended without detaching, or its node has failed.
int tameike_dsm_barrier(tameike_dsm *region);

// Takes lock number `lock` of a region, which one thread of all processes can hold at a time; other callers wait. Stores that the last
// owner made before tameike_dsm_unlock() are visible afterwards. Returns 0 or a negative errno. -EOWNERDEAD: the lock is taken, but a
// process of the region has ended without detaching, perhaps while it held the lock: check what the lock protects. After other errors
// the lock is not taken.
int tameike_dsm_lock(tameike_dsm *region,
                     uint32_t lock);

// Flushes a region like tameike_dsm_flush(), and releases a lock that this process holds. Returns 0 or a negative errno: -EPERM if the
// process does not hold it. After other errors the lock is released.
int tameike_dsm_unlock(tameike_dsm *region,
                       uint32_t lock);

// Adds `addend` to the little-endian 64-bit number at `offset` bytes from the start of a region, at the number's home, and stores the number
// before in `*previous`. Additions of all processes are atomic with respect to each other; loads see the sum after a barrier, update or
// lock. Do not store to the number in other ways meanwhile. Returns 0 or a negative errno: -EINVAL if `offset` is no multiple of 8 in the
// region.
int tameike_dsm_fetch_add(tameike_dsm *region,
                          uint64_t offset,
                          uint64_t addend,
                          uint64_t *previous);

// Allocates a block of `bytes` bytes of a region for any process, at an offset that is a multiple of `alignment` (a power of two, and at
// least 16), and stores the offset of its first byte in `*offset`. Processes map the region at different addresses: pass the offset to
// others, not a pointer. The content of the block is what the region has there. Blocks are forgotten when all processes have detached.
// Returns 0 or a negative errno: -ENOMEM if the region has no such free block; -EINVAL if `bytes` is 0.
int tameike_dsm_allocate(tameike_dsm *region,
                         uint64_t bytes,
                         uint64_t alignment,
                         uint64_t *offset);

// Frees a block at the offset that tameike_dsm_allocate() has returned, in any process. Returns 0 or a negative errno: -EINVAL if no block
// begins there.
int tameike_dsm_deallocate(tameike_dsm *region,
                           uint64_t offset);

// Makes bytes of a region accessible to system calls: to write(2), or with `write` to read(2). They stay so until the next barrier, update
// or lock, or until they are evicted. Returns 0 or a negative errno: -EINVAL if they are not in the region.
int tameike_dsm_touch(tameike_dsm *region,
                      uint64_t offset,
                      uint64_t size,
                      int write);

// Reads the counters of a region. Returns 0 or a negative errno.
int tameike_dsm_stats(tameike_dsm *region, tameike_dsm_counters *stats);

// Flushes a region, detaches from it, and removes its memory, also on an error. No thread may use the region any more. The process also
// detaches from all regions when it returns from main() or calls exit(): its other threads must not use them then. A process that ends
// in another way makes the barriers of the others fail. Returns 0 or a negative errno.
int tameike_dsm_detach(tameike_dsm *region);

// As tameike_dsm_detach(), and removes the file. Processes that are attached can use the region until they detach. All processes may call
// it. Returns 0 or a negative errno.
int tameike_dsm_free(tameike_dsm *region);

// Creates a remote memory window: memory of `bytes` bytes for each of `ranks` processes on any nodes of the job, which all of them read
// and write without the others taking part. All ranks call it together, and it returns when all have called it. Each passes another
// `rank` below `ranks`, and otherwise the same. The memory contains zeros. `path` is a file in the job-shared view, which is created if it
// is missing, and must be empty. With `ranks` 0, rank and number of ranks are those in the environment of Open MPI, MPICH, PMIx or Slurm,
// or else there is one rank. `flags` is 0.
//
// Offsets in other functions are those in the memory of the rank that is accessed. All of them fail with -EINVAL for bytes beyond it. A
// rank on the same node is accessed directly, and one on another node through the agents; there, -EHOSTDOWN means that the node has
// failed, and -EPIPE that the rank has detached.
//
// Returns 0 or a negative errno: -EEXIST if another process has the same rank, or the file is not empty; -EINVAL if others have passed
// something else; -ENOMEM or -ENOSPC if the memory is not free; -EOPNOTSUPP without an agent or outside the job-shared view; -EPIPE or
// -EOWNERDEAD if another rank has failed to create it. A new file may remain.
int tameike_win_create(const char *path,
                       uint64_t bytes,
                       unsigned int rank,
                       unsigned int ranks,
                       unsigned int flags,
                       tameike_win **win);

// Returns the address of the memory of a rank, or null if it is a process of another node. Use atomic operations of the compiler, or the
// functions of this library, for words that several processes change.
void *tameike_win_address(tameike_win *win,
                          unsigned int rank);

// Returns the size of the memory of each rank in bytes.
uint64_t tameike_win_size(tameike_win *win);

// Returns the rank of this process.
unsigned int tameike_win_rank(tameike_win *win);

// Returns the number of ranks.
unsigned int tameike_win_ranks(tameike_win *win);

// Stores bytes in the memory of a rank. When it returns, the program may change `memory`. The bytes are in the memory of the rank after
// tameike_win_quiet() or tameike_win_barrier(), which also return the error of a put that has failed later. Aligned words of 8 bytes
// change as a whole. Returns 0 or a negative errno.
int tameike_win_put(tameike_win *win,
                    unsigned int rank,
                    uint64_t offset,
                    const void *memory,
                    size_t size);

// Loads bytes from the memory of a rank. Returns 0 or a negative errno.
int tameike_win_get(tameike_win *win, unsigned int rank, uint64_t offset, void *memory, size_t size);

// Stores `count` elements of `element_size` bytes, as tameike_win_put(). Elements in the memory of the rank are `stride` elements apart,
// and those at `memory` `memory_stride` elements; both are at least 1. Returns 0 or a negative errno.
int tameike_win_iput(tameike_win *win,
                     unsigned int rank,
                     uint64_t offset,
                     size_t stride,
                     const void *memory,
                     size_t memory_stride,
                     size_t element_size,
                     size_t count);

// Loads elements, with the arguments of tameike_win_iput(). Returns 0 or a negative errno.
int tameike_win_iget(tameike_win *win,
                     unsigned int rank,
                     uint64_t offset,
                     size_t stride,
                     void *memory,
                     size_t memory_stride,
                     size_t element_size,
                     size_t count);

// Stores bytes as tameike_win_put(), and then stores `signal` in the 64-bit word at `signal_offset` in the memory of the same rank, or adds
// it, as `operation` says: TAMEIKE_WIN_SET or TAMEIKE_WIN_ADD. A process that sees the signal sees the bytes. Returns 0 or a negative errno.
int tameike_win_put_signal(tameike_win *win,
                           unsigned int rank,
                           uint64_t offset,
                           const void *memory,
                           size_t size,
                           uint64_t signal_offset,
                           uint64_t signal,
                           int operation);

// Waits until the 64-bit word at `offset` in the own memory compares to `value` as `comparison` says (TAMEIKE_WIN_EQ, ...), as unsigned
// numbers. What its writer has stored before is visible then. A negative time waits without limit. Returns 0 or a negative errno: -EAGAIN
// after this time; -EOWNERDEAD or -EHOSTDOWN if a rank has ended without detaching or a node has failed; -EIO if the agent has failed.
int tameike_win_wait_until(tameike_win *win,
                           uint64_t offset,
                           int comparison,
                           uint64_t value,
                           int milliseconds);

// Returns 1 if the word at `offset` in the own memory compares to `value` as `comparison` says, 0 if not, or a negative errno.
int tameike_win_test(tameike_win *win,
                     uint64_t offset,
                     int comparison,
                     uint64_t value);

// Orders accesses: what this process stores in the memory of a rank later is visible there only after what it has stored there before.
// Does not wait. Returns 0 or the negative errno of an earlier put.
int tameike_win_fence(tameike_win *win);

// Waits until all that this process has stored is in the memory of its rank, and visible to all. Returns 0 or the negative errno of a
// put.
int tameike_win_quiet(tameike_win *win);

// As tameike_win_quiet(), and waits until all ranks have called it. Returns 0 or a negative errno: -EOWNERDEAD or -EPIPE if a rank has ended
// or detached, -EHOSTDOWN if a node has failed, or that of a put.
int tameike_win_barrier(tameike_win *win);

// Adds `addend` to the 64-bit word at `offset` in the memory of a rank, and stores the value before in `*previous`, which may be null.
// Additions, swaps, and signals of all processes are atomic with respect to each other. Returns 0 or a negative errno: -EINVAL if `offset` is no
// multiple of 8.
int tameike_win_fetch_add(tameike_win *win,
                          unsigned int rank,
                          uint64_t offset,
                          uint64_t addend,
                          uint64_t *previous);

// As tameike_win_fetch_add(), and stores `value` in the word.
int tameike_win_swap(tameike_win *win, unsigned int rank, uint64_t offset, uint64_t value, uint64_t *previous);

// As tameike_win_fetch_add(), and stores `value` in the word if it has the value `expected`.
int tameike_win_compare_swap(tameike_win *win,
                             unsigned int rank,
                             uint64_t offset,
                             uint64_t expected,
                             uint64_t value,
                             uint64_t *previous);

// Reads the word as a whole. Returns 0 or a negative errno.
int tameike_win_fetch(tameike_win *win, unsigned int rank, uint64_t offset, uint64_t *value);

// Completes all puts, detaches from a window, and removes its memory, also on an error. No thread may use the window any more. Barriers of
// the others fail from then on. The process also detaches when it returns from main() or calls exit(). A process that ends in another way
// makes the waits of the others fail, too. Returns 0 or a negative errno.
int tameike_win_detach(tameike_win *win);

// As tameike_win_barrier() and then tameike_win_detach(), and removes the file before it returns in any rank. All ranks call it together.
// Detaches also if the barrier fails. Returns 0 or a negative errno.
int tameike_win_free(tameike_win *win);

// Returns the size of a message queue in bytes, or 0 if it is too large.
uint64_t tameike_win_queue_size(uint64_t slots, uint64_t message_size);

// Creates an empty message queue at `offset` in the own memory, a multiple of 8, for `slots` messages of up to `message_size` bytes. It takes
// tameike_win_queue_size() bytes. Others may send after a barrier, or another sign that it is there. Returns 0 or a negative errno.
int tameike_win_queue_init(tameike_win *win,
                           uint64_t offset,
                           uint64_t slots,
                           uint64_t message_size);

// Appends a message to the queue at `queue` in the memory of a rank, and waits while it is full; a negative time waits without limit. Any
// number of processes and threads may send. Messages of one thread arrive in their order. Returns 0 or a negative errno: -EAGAIN if the
// queue is full after this time; -EINVAL if there is no queue; -EMSGSIZE if the message is too large, or above 1 MiB for a rank of another
// node; and the errors of tameike_win_wait_until(). After -EHOSTDOWN the message may have arrived.
int tameike_win_send(tameike_win *win,
                     unsigned int rank,
                     uint64_t queue,
                     const void *message,
                     size_t size,
                     int milliseconds);

// Takes the oldest message from the queue at `queue` in the own memory, and waits while it is empty; a negative time waits without limit.
// Returns the size of the message, or a negative errno: -EAGAIN if the queue is empty after this time; -EMSGSIZE if the message is larger than
// `capacity`: it stays in the queue; and the errors of tameike_win_wait_until(), when the queue is empty.
ssize_t tameike_win_receive(tameike_win *win,
                            uint64_t queue,
                            void *memory,
                            size_t capacity,
                            int milliseconds);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TAMEIKE_H */
