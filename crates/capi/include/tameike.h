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
 */

#ifndef TAMEIKE_H
#define TAMEIKE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// A container of many files in a few.
typedef struct tameike_agg tameike_agg;

// A file in a container that is open.
typedef struct tameike_agg_file tameike_agg_file;

// Names in a directory of a container.
typedef struct tameike_agg_list tameike_agg_list;

// An open file.
typedef struct tameike_file tameike_file;

// A list under way.
typedef struct tameike_request tameike_request;

// One piece of a file and of memory.
typedef struct {
  // Where in the file, in bytes.
  uint64_t offset;
  // Where in memory. What is written is only looked at.
  void *memory;
  // How many bytes.
  size_t size;
} tameike_piece;

// A moment.
typedef struct {
  // Since the beginning of 1970.
  int64_t seconds;
  // Less than 1,000,000,000.
  uint32_t nanoseconds;
} tameike_time;

// Attributes, as stat(2) has them but for the device.
typedef struct {
  // The file's number within its view.
  uint64_t ino;
  // In bytes.
  uint64_t size;
  // Of 512 bytes.
  uint64_t blocks;
  // Of the last read.
  tameike_time atime;
  // Of the last write.
  tameike_time mtime;
  // Of the last change of attributes.
  tameike_time ctime;
  // Kind and permissions.
  uint32_t mode;
  // How many names it has.
  uint32_t nlink;
  // Its owner.
  uint32_t uid;
  // Its group.
  uint32_t gid;
  // Of a device file.
  uint64_t rdev;
  // Bytes that are best read and written at once.
  uint32_t blksize;
} tameike_status;

// How a process takes part in a container. All zeros but `rank`, which is -1, is what suits most programs.
typedef struct {
  // Which of `size` processes this one is, from 0 on, each once; -1 where it is not known: then the environment of Open MPI,
  // MPICH, PMIx and Slurm is asked, and a process of none of them is one of any number.
  int32_t rank;
  // How many processes there are.
  uint32_t size;
  // Bytes of a block of a container that is made: a power of two from 4096 to 67108864, the stripe of the file system at best; 0
  // for what suits it: 4 MiB at least, and 16 MiB where several processes share a file, over MooseFS its chunk of 64 MiB.
  uint32_t block_size;
  // Files of a container that is made, which the ranks share: as many as there are storage targets at best; 0 for up to 8.
  uint32_t subfiles;
  // How data is kept that this process writes: 0 as it is, 1 smaller by Zstandard where that pays.
  uint32_t compression;
  // Not 0 where all processes begin and end together, rank 0 as the first and as the last one: then each has its part of the container from
  // the beginning on, and rank 0 alone writes the index. tameike_agg_initialize_mpi() sets it. One rank alone writes to up to five
  // files at the same time, by threads, and has up to ten blocks in memory, of longer ones 16 MiB.
  uint32_t is_collective;
  // Where all processes begin together: what tameike_agg_known() has told rank 0; null where nothing is known. Then none opens any of
  // the container's files that it does not need, nor its index, unless that is large.
  const void *known;
  // Its bytes.
  size_t known_size;
} tameike_agg_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens a file as open(2) does, with O_CLOEXEC. `mode` counts with O_CREAT. `*file` is for tameike_close().
// Returns 0 or a negative errno.
int tameike_open(const char *path, int flags, unsigned int mode, tameike_file **file);

// Closes a file and tells what close(2) tells: of failed writes, too. The file is gone whatever is told, but with -EBUSY:
// a request on it was not waited for. Returns 0 or a negative errno.
int tameike_close(tameike_file *file);

// Reads at an offset. Less than `size` bytes come only at the end of the file. Returns bytes or a negative errno.
ssize_t tameike_read(tameike_file *file, void *memory, size_t size, uint64_t offset);

// Writes at an offset; to the end where the file was opened with O_APPEND. Less than `size` bytes are written only when the
// rest failed: the next call tells why. Returns bytes or a negative errno.
ssize_t tameike_write(tameike_file *file,
                      const void *memory,
                      size_t size,
                      uint64_t offset);

// Reads pieces, several at the same time. Returns the bytes of all pieces before the first that came out short, and of that
// one; or a negative errno, when the first piece failed.
ssize_t tameike_read_list(tameike_file *file,
                          const tameike_piece *pieces,
                          size_t count);

// Writes pieces, several at the same time: none may overlap in the file. What it returns is as of tameike_read_list().
ssize_t tameike_write_list(tameike_file *file, const tameike_piece *pieces, size_t count);

// Begins to read pieces; the program goes on, and leaves their memory alone until tameike_wait() has told the end. `*request`
// is for that. Returns 0 or a negative errno.
int tameike_submit_read(tameike_file *file,
                        const tameike_piece *pieces,
                        size_t count,
                        tameike_request **request);

// Begins to write pieces; as tameike_submit_read(). Their order in the file's history is not told: none may overlap.
int tameike_submit_write(tameike_file *file, const tameike_piece *pieces, size_t count, tameike_request **request);

// Waits for a request's end, for so many milliseconds: 0 does not wait, a negative number has no limit. Pieces go on while a
// program waits for them; up to twelve are under way meanwhile, for all requests of the process together. Returns what
// tameike_read_list() does, and the request is gone; or -EINPROGRESS, and it goes on.
ssize_t tameike_wait(tameike_request *request,
                     int milliseconds);

// Attributes of an open file. Returns 0 or a negative errno.
int tameike_fstat(tameike_file *file, tameike_status *status);

// Attributes of a file by its path, of what a symbolic link at its end leads to. Returns 0 or a negative errno.
int tameike_stat(const char *path, tameike_status *status);

// The same, of a symbolic link itself.
int tameike_lstat(const char *path, tameike_status *status);

// Cuts or extends a file to `size` bytes. Returns 0 or a negative errno.
int tameike_ftruncate(tameike_file *file, uint64_t size);

// As fsync(2). Returns 0 or a negative errno.
int tameike_fsync(tameike_file *file);

// The file's descriptor in the kernel, for calls that are not here (mmap, locks): it ends with tameike_close(), and from now
// on all calls on the file go through the kernel. Returns the descriptor or a negative errno.
int tameike_descriptor(tameike_file *file);

// Removes a name of a file, as unlink(2). Returns 0 or a negative errno.
int tameike_unlink(const char *path);

// Makes a directory, as mkdir(2). Returns 0 or a negative errno.
int tameike_mkdir(const char *path, unsigned int mode);

// Renames, as renameat2(2) with its flags. Returns 0 or a negative errno.
int tameike_rename(const char *from, const char *to, unsigned int flags);

// Opens a container, which is a directory: O_RDONLY, or O_RDWR to add to it, with O_CREAT to make it where it is missing. `options`
// may be null. Any number of processes may do so at the same time, on any nodes; each needs to do it for itself, children of fork(), too.
// `*container` is for tameike_agg_finalize(). Returns 0 or a negative errno.
int tameike_agg_initialize(const char *dir,
                           int flags,
                           const tameike_agg_options *options,
                           tameike_agg **container);

// Ends the use of a container: all that was written is safe then. The last of all processes that ends writes an index, with which it is
// opened at once. Files and lists must be closed before, -EBUSY tells of one that is not. What cannot be made safe is told, and
// the container is gone for the process all the same. Returns 0 or a negative errno.
int tameike_agg_finalize(tameike_agg *container);

// Makes all that was written to files of a container safe, open ones, too; others see it when they look again. Returns 0 or a negative errno.
int tameike_agg_sync(tameike_agg *container);

// Looks for what other processes have added. A name that is missing is looked for without being asked; files that were changed are
// seen after this. Returns 0 or a negative errno.
int tameike_agg_refresh(tameike_agg *container);

// Tells in words why the last call on a container has failed in this thread: what happened, to what. It is there until the next one
// fails, and empty when none has.
const char *tameike_agg_message(void);

// Opens a file of a container as open(2) does: `path` is relative to the container's root, and directories that it lies in are made with
// it. Links are followed within the container. O_EXCL sees what this process knows of. `*file` is for tameike_agg_close(). Returns 0 or
// a negative errno.
int tameike_agg_open(tameike_agg *container,
                     const char *path,
                     int flags,
                     unsigned int mode,
                     tameike_agg_file **file);

// Opens a file for reading and writing, which is empty then: as tameike_agg_open() with O_RDWR, O_CREAT and O_TRUNC. Nobody else is asked
// whether there is one, so that any number of processes make files of their own at once.
int tameike_agg_create(tameike_agg *container,
                       const char *path,
                       unsigned int mode,
                       tameike_agg_file **file);

// Closes a file. What was written is in the container then, and safe with the next sync. The file is gone whatever is told; what could
// not be put in the container is tried again by tameike_agg_sync() and tameike_agg_finalize(). Returns 0 or a negative errno.
int tameike_agg_close(tameike_agg_file *file);

// Reads where the file's position is, and moves it. Less than `size` bytes come only at the end of the file. Returns bytes or a
// negative errno.
ssize_t tameike_agg_read(tameike_agg_file *file,
                         void *memory,
                         size_t size);

// Writes where the file's position is, and moves it; at the end with O_APPEND. All is written, or the call fails. Returns bytes or a negative errno.
ssize_t tameike_agg_write(tameike_agg_file *file,
                          const void *memory,
                          size_t size);

// Reads at an offset. Less than `size` bytes come only at the end of the file. Returns bytes or a negative errno.
ssize_t tameike_agg_pread(tameike_agg_file *file, void *memory, size_t size, uint64_t offset);

// Writes at an offset; at the end with O_APPEND. All is written, or the call fails. Returns bytes or a negative errno.
ssize_t tameike_agg_pwrite(tameike_agg_file *file, const void *memory, size_t size, uint64_t offset);

// Moves the position of a file, as lseek(2) does with SEEK_SET, SEEK_CUR and SEEK_END. Returns the position or a negative errno.
int64_t tameike_agg_lseek(tameike_agg_file *file,
                          int64_t offset,
                          int whence);

// Sets the size of a file. Returns 0 or a negative errno.
int tameike_agg_ftruncate(tameike_agg_file *file, uint64_t size);

// Makes an open file safe, and all that this process has closed before. Returns 0 or a negative errno.
int tameike_agg_fsync(tameike_agg_file *file);

// Tells of an open file. Returns 0 or a negative errno.
int tameike_agg_fstat(tameike_agg_file *file, tameike_status *status);

// Tells of what is at a path; links are followed, within the container. Returns 0 or a negative errno.
int tameike_agg_stat(tameike_agg *container, const char *path, tameike_status *status);

// Makes a directory, and those that it lies in. Returns 0 or a negative errno.
int tameike_agg_mkdir(tameike_agg *container, const char *path, unsigned int mode);

// Removes a directory in which nothing is. Returns 0 or a negative errno.
int tameike_agg_rmdir(tameike_agg *container, const char *path);

// Removes a file. Who has it open keeps it until it is closed. Returns 0 or a negative errno.
int tameike_agg_unlink(tameike_agg *container, const char *path);

// Gives a file or a directory another name, in place of what has that name: of a directory that is empty at most. Returns 0 or a negative
// errno.
int tameike_agg_rename(tameike_agg *container,
                       const char *from,
                       const char *to);

// Lists a directory as it is now. `*list` is for tameike_agg_closedir(). Returns 0 or a negative errno.
int tameike_agg_opendir(tameike_agg *container, const char *path, tameike_agg_list **list);

// Gives the next name of a list, by name, and in `*kind`, unless that is null, what it is: as the kind in a `mode`. The name is
// there until the list is closed. Returns 1, 0 at the end, or a negative errno.
int tameike_agg_readdir(tameike_agg_list *list,
                        const char **name,
                        uint32_t *kind);

// Closes a list. Returns 0 or a negative errno.
int tameike_agg_closedir(tameike_agg_list *list);

// Tells rank 0 of a program what it knows of a container that it has just opened: for `known` in the options of all others, which open it
// after that. `known` is only written to where `size` bytes are enough, and may be null where that is 0. Returns how many bytes it takes, 1 MiB and a
// few at most; 0 where the others have to look for themselves; or a negative errno.
ssize_t tameike_agg_known(tameike_agg *container,
                          void *known,
                          size_t size);

// As tameike_agg_finalize(), and tells what this process has put, for tameike_agg_take_report() of the process that ends last: `*report` has `*size` bytes and is
// for free(); null and 0 where nothing is told. Returns 0 or a negative errno.
int tameike_agg_finalize_reporting(tameike_agg *container,
                                   void **report,
                                   size_t *size);

// What another process has reported, so that this one, which ends last and writes the index, need not look for it. Returns 0, or a negative errno:
// -EINVAL for what is no report.
int tameike_agg_take_report(tameike_agg *container,
                            const void *report,
                            size_t size);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TAMEIKE_H */
