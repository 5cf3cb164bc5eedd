//! `tameike run --aggregate-only`: programs that start other programs.

use crate::support::spooled::SpoolSite;
use crate::support::{binary, succeed};
use std::path::Path;
use std::process::Command;

/// Runs a script in a plain directory and in a container's: output and files are the same.
fn compare(script: &str) {
    let site = SpoolSite::new();
    let listing = "find . -mindepth 1 | LC_ALL=C sort; find . -type f | LC_ALL=C sort | xargs md5sum";
    let script = format!("umask 022\n{script}\ncd \"$here\"; {listing}");
    let with = |dir: &Path| format!("here={}\ncd $here\n{script}", dir.display());
    let expected = site.plainly(&with(&site.plain()));
    assert_eq!(succeed(&mut site.run(&["bash", "-euc", &with(&site.container())])), expected);
    let script = format!("cd {}\n{listing}", site.extracted().display());
    assert!(expected.ends_with(&site.plainly(&script)), "{expected}");
}

/// S39k.
///
/// Programs with a replaced environment (`env -i`, many build systems) started without the library: they found no files, and
/// their output was beside the container.
#[test]
fn programs_with_a_replaced_environment_use_the_spool() {
    compare(
        r#"echo in > a; env -i /bin/cat "$here/a"; env -i /bin/sh -c "echo out > $here/b; mkdir $here/sub"; cat b
           env -i PATH="$PATH" LD_PRELOAD=libm.so.6 sh -c "echo preloaded > $here/c"; env -u LD_PRELOAD sh -c "cat $here/c"
           env -i $(seq -f 'V%g=x' 3000) /bin/sh -c "echo \$V3000 > $here/many"; cat many
           python3 - <<'PYTHON'
import ctypes, os, subprocess
library = ctypes.CDLL(None, use_errno=True)
here = os.getcwd()
def child(call, *arguments):
    process = os.fork()
    if process == 0:
        call(*arguments)
        os._exit(9)
    ended(process)
def ended(process):
    status = os.waitpid(process, 0)[1]
    assert status == 0, status
def command(name):
    return f"echo it is $1$2$3$4$5$6$7 > {here}/by-{name}"
def words(name):
    return ["sh", "-c", command(name), "sh", *"1234567"]
def array(texts):
    return (ctypes.c_char_p * (len(texts) + 1))(*(text.encode() for text in texts), None)
def each(texts):
    return [ctypes.c_char_p(text.encode()) for text in texts] + [ctypes.c_void_p()]
shell = ctypes.c_char_p(b"/bin/sh")
subprocess.run(words("subprocess"), env={}, check=True)
subprocess.run(words("thread"), env={"A": "B"}, check=True, preexec_fn=lambda: None)
child(os.execve, "/bin/sh", words("execve"), {})
child(os.execvpe, "sh", words("execvpe"), {"PATH": os.environ["PATH"]})
child(library.execvpe, ctypes.c_char_p(b"sh"), array(words("c-execvpe")), array([]))
ended(os.posix_spawn("/bin/sh", words("spawn"), {}))
ended(os.posix_spawnp("sh", words("spawnp"), {}))
child(library.execle, shell, *each(words("execle")), array(["A=B"]))
child(library.execve, shell, array(words("null")), ctypes.c_void_p())
child(library.fexecve, os.open("/bin/sh", os.O_RDONLY), array(words("fexecve")), array([]))
child(library.execveat, os.open("/bin", os.O_RDONLY), ctypes.c_char_p(b"sh"), array(words("execveat")), array([]), 0)
library.clearenv()
child(library.execl, shell, *each(words("execl")))
child(library.execlp, ctypes.c_char_p(b"sh"), *each(words("execlp")))
child(library.execv, shell, array(words("execv")))
child(library.execvp, ctypes.c_char_p(b"sh"), array(words("execvp")))
assert library.system(b"printf '%s' \"it's \\$0\" > by-system; exit 7") == 7 << 8
assert library.system(None) != 0
library.popen.restype = ctypes.c_void_p
library.fgets.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
library.pclose.argtypes = [ctypes.c_void_p]
pipe = library.popen(f"cat {here}/by-system".encode(), b"r")
line = ctypes.create_string_buffer(100)
library.fgets(line, 100, pipe)
assert library.pclose(pipe) == 0 and line.value == b"it's $0", line.value
PYTHON
           cat by-*"#,
    );
}

/// A nested run has its own container, and a program can leave both.
#[test]
fn a_nested_spool_and_a_disabled_spool_are_respected() {
    let site = SpoolSite::new();
    let (other, file) = (site.base.path().join("other"), site.container().join("file"));
    let (other, file) = (other.display(), file.display());
    let script = format!(
        "echo outer > file; env -i $TAMEIKE_BINARY run --aggregate-only {other} --spool ../spool -- \
         sh -c 'env -i /bin/sh -c \"echo inner > {other}/file\"'; until-packed file; cat {file}
         if TAMEIKE_SPOOL= /bin/cat {file}; then exit 1; fi
         if TAMEIKE_SPOOL= env -i TAMEIKE_SPOOL= /bin/cat {file}; then exit 1; fi"
    );
    assert_eq!(succeed(&mut site.script(&script)), "outer\n");
    let inner = ["agg", "cat", &other.to_string(), "file"];
    assert_eq!(succeed(Command::new(binary()).args(inner)), "inner\n");
    assert_eq!(site.extracted_text("file"), "outer\n");
}

/// A script with an interpreter in the directory, as in Python virtual environments, could not run: the kernel searched the
/// interpreter beside the container. And a script received its name in the spool as argument.
#[test]
fn interpreters_are_found_in_the_spool() {
    compare(
        r##"mkdir bin; cp /bin/bash bin/own; dir=bin
           script() { printf '#!%s\n%s\n' "$2" "$3" > "$1"; chmod +x "$1"; }
           tell='printf "%s|" "${0#"$here"}" "$@"; echo'; export here
           script bin/tool "$here/bin/own" "$tell"; script bin/with "$here/bin/own -e" "$tell; false; echo not here"
           script bin/plain /bin/sh "$tell"; script bin/over "$here/bin/tool   one two  " ignored; script ../beside "$here/bin/own" 'echo beside'
           script bin/relative bin/own "$tell"; script bin/none "$here/bin/nothing" ""; script bin/closed "$here/bin/own" "$tell"; chmod -x bin/closed
           printf '%s\n' "$tell" > bin/bare; chmod +x bin/bare; printf '#!%s' "$here/bin/own" > bin/short; chmod +x bin/short
           run() {
               bin/tool a "b c"; "$here/bin/tool" d; bin/with e || echo failed; bin/plain f; "$here/bin/plain"; bin/over g h; bin/relative i; bin/short
               bin/bare j; env bin/bare; (cd bin; ./tool k; PATH=.: tool l; env PATH= tool m); ../beside | sed 's,.*/,,'; cat bin/tool | bin/own /dev/stdin n | wc -l
               for name in none closed nothing; do "bin/$name" 2>/dev/null || echo "$name $?"; env "bin/$name" 2>/dev/null || echo "$name $?"; done
               (PATH="$here/bin:$PATH"; tool o; env tool p; env plain; env bare q; env -i here="$here" PATH="$PATH" tool r; env closed 2>/dev/null || echo $?; nice own -c 'echo found'
                python3 -c '
import os, subprocess
subprocess.run(["tool", "s"], check=True)
subprocess.run(["tool", "t"], check=True, env={}, executable="bin/tool")
for word in ("tool", "plain", "own"):
    os.waitpid(os.posix_spawnp(word, [word, "-c", "echo spawned"], os.environ), 0)
for word in ("closed", "nothing"):
    try: os.posix_spawnp(word, [word], os.environ)
    except OSError as error: print(word, error.errno)
')
           }
           until-packed bin/own bin/tool bin/plain bin/bare bin/over; run; run; (cd ..; "$(basename "$here")/bin/tool" far | sed 's,^[^|]*/,,')
           for level in $(seq 8); do script "level$level" "$here/level$((level - 1))" ""; done; script level0 "$here/bin/own" 'echo ran'
           for level in $(seq 8); do python3 -c 'import subprocess, sys; subprocess.run([sys.argv[1]], check=True)' "$here/level$level" 2>&1 | tail -1 | sed "s,$here,,g"; done
           rm -r level* bin"##,
    );
}

#[test]
fn virtual_environments_of_python_are_run() {
    compare(
        r##"export PYTHONDONTWRITEBYTECODE=1; python3 -m venv --without-pip venv
           printf '#!%s\nimport sys, own\nprint(sys.prefix != sys.base_prefix, own.WORD, sys.argv[1:])\n' "$here/venv/bin/python" > venv/bin/tool
           chmod +x venv/bin/tool; echo 'WORD = "mine"' > "$(echo venv/lib/python3*/site-packages)/own.py"
           venv/bin/tool a; (. venv/bin/activate; tool b; env tool c; python -c 'import own; print(own.WORD)'); env -i "$here/venv/bin/tool" d
           rm -r venv"##,
    );
}
