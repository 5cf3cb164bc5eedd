/* Files of a job's views, without the kernel on the way.
 *
 * cc program.c $(pkg-config --cflags --libs tameike)
 *
 * In a job of Tameike, calls on files of its views go to the agent of the node through shared memory. Elsewhere, and for what
 * the agent leaves to the kernel, the library makes the kernel's calls: each function works on every path. Nothing is
 * printed, no call ends the program, and what fails tells why by a negative number of errno.h. An agent that has gone away is
 * -EIO, and -ENOTCONN later.
 *
 * Functions may be called by any number of threads at once, a request by one at a time; none by signal handlers. In a child
 * of fork(), files and requests of the parent fail with -EIO: let the child open its own. A file that was opened with
 * tameike_open() is seen by all other programs as SEMANTICS.md says, as if its calls were the kernel's.
 */

#ifndef TAMEIKE_H
#define TAMEIKE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

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

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TAMEIKE_H */
