//! Scripts with unchanged programs, and a listing of their files.

use crate::support::succeed;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lists a directory: names, types, modes, sizes and checksums. Git's index contains times of files.
pub const LISTING: &str = r"find . -printf '%P %y %m %n ' -a \( -type f -printf '%s\n' -o -printf '\n' \) | sort
    find . -type f ! -path '*/.git/index' -print0 | sort -z | xargs -0 sha256sum";

/// Small tools, in a shell.
pub const COREUTILS: &str = "umask 022; seq 20000 > numbers; cp numbers copy; mkdir -p a/b; cat numbers copy >> a/both; wc -c < a/both
         head -c 1000 numbers > a/b/head; tail -c +500 a/b/head | md5sum; mv a/b/head a/head; rm copy
         dd if=numbers of=a/dd bs=777 count=20 seek=3 conv=notrunc status=none; truncate -s 5000 a/dd
         sort -r numbers -o sorted; ln sorted hard; ln -s a/dd soft; cmp sorted hard; test -s soft; chmod 640 sorted
         split -n 5 numbers part-; cat part-* | cmp - numbers; stat -c '%s %a %h' numbers sorted; test ! -e none";

/// tar, gzip and git.
pub const ARCHIVES: &str = "umask 022; export HOME=$PWD GIT_CONFIG_NOSYSTEM=1
         mkdir src; for i in $(seq 60); do seq $i $((i * 50)) > src/file-$i; done
         tar -cf all.tar --sort=name --mtime=@0 --owner=0 --group=0 src; mkdir out; tar -xf all.tar -C out; diff -r src out/src
         rm -r out; gzip -n all.tar; gzip -dk all.tar.gz; rm all.tar
         git init -q repo; cp src/* repo; cd repo; git add .; GIT_AUTHOR_DATE='1000000000 +0000' GIT_COMMITTER_DATE='1000000000 +0000' \\
             git -c user.name=a -c user.email=b commit -qm one; git fsck --strict; git status --short; git log --oneline; cd ..
         rm -rf repo";

/// Python with mmap, fork and SQLite.
pub const PYTHON: &str = r#"umask 022; python3 - <<'PYTHON'
import os, mmap, sqlite3
with open("data", "wb") as out:
    for number in range(300):
        out.write(bytes([number % 256]) * 7001)
fd = os.open("data", os.O_RDWR)
os.pwrite(fd, b"here", 1 << 20)
mapped = mmap.mmap(fd, 0)
assert mapped[1 << 20:(1 << 20) + 4] == b"here"
mapped[5:9] = b"mmap"
mapped.flush()
assert os.pread(fd, 4, 5) == b"mmap"
if os.fork() == 0:
    os.write(fd, b"child")
    os._exit(0)
os.wait()
assert os.lseek(fd, 0, os.SEEK_CUR) == 5
os.close(fd)
with open("log", "a") as log:
    for number in range(50):
        print(number, file=log, flush=True)
    assert log.tell() == os.path.getsize("log")
base = sqlite3.connect("base")
base.execute("create table t (a integer primary key, b text)")
with base:
    base.executemany("insert into t values (?, ?)", ((n, str(n) * 20) for n in range(2000)))
assert base.execute("pragma integrity_check").fetchone() == ("ok",)
base.close()
PYTHON
        rm base"#;

/// Processes of Python that share the work, and the output of each.
pub const PROCESSES: &str = r#"umask 022; cat > many.py <<'PYTHON'
import multiprocessing, os, tempfile
FILES = 240
def write(number):
    os.makedirs(f"out/{number % 7}", exist_ok=True)
    with open(f"out/{number % 7}/{number}", "w") as file:
        file.write(str(number) * (number % 50))
    with tempfile.NamedTemporaryFile(dir="out", delete=False) as file:
        file.write(b"temporary")
    os.replace(file.name, f"out/renamed-{number}")
    os.chmod(f"out/renamed-{number}", 0o640)
    return os.path.getsize(f"out/{number % 7}/{number}")
def read(number):
    with open(f"out/{number % 7}/{number}") as file:
        assert file.read() == str(number) * (number % 50)
    return sum(os.path.getsize(f"out/{number % 7}/{name}") >= 0 for name in os.listdir(f"out/{number % 7}"))
if __name__ == "__main__":
    for start in ("fork", "spawn"):
        with multiprocessing.get_context(start).Pool(6) as pool:
            sizes = pool.map(write, range(FILES))
            assert sizes == [len(str(number)) * (number % 50) for number in range(FILES)]
            assert sum(pool.map(read, range(0, FILES, 9))) > FILES // 9 * (FILES // 7 - 1)
    assert len(os.listdir("out")) == FILES + 7
    os.rename("out", "moved")
    assert open("moved/3/10").read() == "10" * 10
PYTHON
        python3 many.py"#;

/// Git, with repositories that stay. A flush changes the ctime of files (S14c): `git merge` fails if a ctime that it trusts changes while it
/// runs.
pub const REPOSITORIES: &str = "umask 022; export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=pack.threads GIT_CONFIG_VALUE_0=1
         export GIT_CONFIG_KEY_1=core.trustctime GIT_CONFIG_VALUE_1=false
         export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
         export GIT_AUTHOR_DATE=2001-02-03T04:05:06Z GIT_COMMITTER_DATE=2001-02-03T04:05:06Z
         git init -q --initial-branch=main first; cd first; for i in $(seq 80); do mkdir -p d$((i % 7)); seq $((i * 50)) > d$((i % 7))/f$i; done
         git add .; git commit -qm one; git checkout -qb side; git mv d1 moved; git rm -qr d2; git commit -qam two; git checkout -q main
         seq 9 > d3/new; git add .; git commit -qm three; git merge -q side; cd ..
         git -c core.logAllRefUpdates=false clone -q first second; cd second; git remote set-url origin ../first; seq 7 > seven; git add .; git commit -qm four; git push -q origin HEAD:back; git repack -qad; cd ../first
         git merge -q back; git gc -q; git fsck --full --strict; git status --short; git log --oneline --graph; git ls-files -s; cd ..";

/// Git again, in these repositories.
pub const REPOSITORIES_AGAIN: &str = "export HOME=$PWD GIT_CONFIG_NOSYSTEM=1
         for i in first second; do git -C $i fsck --full --strict; git -C $i status --short; git -C $i log --oneline --stat; git -C $i archive HEAD | md5sum; done";

/// SQLite, with databases that stay.
pub const DATA_BASES: &str = "umask 022; for mode in delete wal; do
         sqlite3 $mode.db \"pragma journal_mode=$mode; create table t(a integer primary key, b text); begin;
             with recursive c(x) as (select 1 union all select x+1 from c where x<20000) insert into t select x, hex(zeroblob(x%50)) from c;
             commit; create index i on t(b); delete from t where a%3=0; vacuum; pragma integrity_check;\"
         sqlite3 $mode.db 'begin; update t set b=b||a where a%7=0; rollback; update t set b=b||a where a%5=0; select count(*), sum(length(b)) from t;'
         sqlite3 small-$mode.db \"pragma journal_mode=$mode; create table t(a); insert into t values (1), (2);\"; sqlite3 small-$mode.db 'insert into t select a+10 from t;'
         done";

/// SQLite again, on these databases.
pub const DATA_BASES_AGAIN: &str = "for i in *.db; do
         sqlite3 $i 'pragma integrity_check; pragma journal_mode; select count(*), sum(a) from t; insert into t(a) values (1000000); select max(a) from t;'; done";

/// Creates an archive of so many hundred files, and lists the directory.
pub fn make_archive(hundreds: u32) -> String {
    format!(
        "for i in $(seq {hundreds}); do mkdir $i; seq 100 | (cd $i; split -l 1 -a 3 -d - file-); done; tar -cf ../all.tar ."
    )
}

/// Compiles MPI programs into a directory. They write and read files below their argument.
pub fn of_mpi(into: &Path) -> Vec<PathBuf> {
    let compiled = OF_MPI.map(|(compiler, source, text)| {
        let (source, program) = (into.join(source), into.join(compiler));
        fs::write(&source, text).expect("a source");
        succeed(Command::new(compiler).arg(&source).arg("-o").arg(&program));
        program
    });
    compiled.to_vec()
}

/// Compilers and their sources.
const OF_MPI: [(&str, &str, &str); 2] = [("mpicc", "writer.c", WRITER_C), ("mpif90", "writer.f90", WRITER_F)];

const WRITER_C: &str = r#"#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    char path[200], line[100];
    for (int step = 0; step < 20; step++) {
        snprintf(path, sizeof path, "%s/c-%d-%d", argv[1], rank, step);
        FILE *out = fopen(path, "w");
        if (!out) MPI_Abort(MPI_COMM_WORLD, 1);
        for (int i = 0; i < 1000; i++) fprintf(out, "%d %d %d\n", rank, step, i);
        if (fclose(out)) MPI_Abort(MPI_COMM_WORLD, 2);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    snprintf(path, sizeof path, "%s/c-%d-19", argv[1], (rank + 1) % size);
    FILE *in = fopen(path, "r");
    if (!in || !fgets(line, sizeof line, in)) MPI_Abort(MPI_COMM_WORLD, 3);
    snprintf(path, sizeof path, "%d 19 0\n", (rank + 1) % size);
    if (strcmp(line, path)) MPI_Abort(MPI_COMM_WORLD, 4);
    fclose(in);
    MPI_Finalize();
}
"#;

const WRITER_F: &str = "program writer
  use mpi
  implicit none
  integer :: rank, ierr, step, i, found
  character(len=200) :: dir, path
  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call get_command_argument(1, dir)
  do step = 0, 9
    write (path, '(a,\"/f-\",i0,\"-\",i0)') trim(dir), rank, step
    open (unit=20, file=path, form='unformatted', access='stream', status='replace')
    write (20) (i * rank + step, i = 1, 5000)
    close (20)
    open (unit=21, file=path, form='unformatted', access='stream', status='old', action='read')
    read (21) found
    if (found /= rank + step) call MPI_Abort(MPI_COMM_WORLD, 5, ierr)
    close (21)
  end do
  call MPI_Finalize(ierr)
end program
";
