#!/usr/bin/env python3
"""Epochs of training: four nodes read many small files in an order of chance that differs each time, every node its share, from a slow server
alone (slow_server.py says what it is and needs), and through the cache view of a job, warmed before or not.

    bench/epochs.py DIRECTORY NAME [--base gfarm|xfs] [--files 20000] [--kib 100] [--epochs 6] [--workers 2]

DIRECTORY is where the image of the server's disk lies. Writes bench/runs/NAME. A node reads as PyTorch's DataLoader does with a
DistributedSampler: each epoch all nodes shuffle the list of files alike and take every fourth, in batches of 64, which its worker processes
read in turn and hand to the process that trains. Every byte that is read is compared. An epoch ends when the last node has its last batch.
The server has nothing of the files in memory before each first epoch and before it is warmed.
"""

import json, os, random, statistics, subprocess, sys, time
from multiprocessing import Process, SimpleQueue
from multiprocessing.connection import Client, Listener
from pathlib import Path

import picture, slow_server
from slow_server import TARGET

BATCH = 64
# Processes of a node that make the files: to make one on Gfarm is mostly waiting.
WRITERS = 8
POOL = Path("/dev/shm/pool")
PER_DIRECTORY = 1000


class Files:
    """The data set: what each file is called, and what is in it."""

    def __init__(self, directory, count, kib):
        self.directory, self.count, self.size = directory, count, kib << 10
        self.pool = POOL.read_bytes()

    def path(self, index):
        return f"{self.directory}/{index // PER_DIRECTORY:03}/{index:06}"

    def content(self, index):
        # Each begins at another byte of the pool.
        return self.pool[index : index + self.size]

    def write(self, indices):
        for index in indices:
            with open(self.path(index), "wb", buffering=0) as file:
                assert file.write(self.content(index)) == self.size

    def read(self, index):
        with open(self.path(index), "rb", buffering=0) as file:
            found = file.read(self.size + 1)
        assert found == self.content(index), f"{self.path(index)} is not what was written"


def work(files, tasks, done):
    """A worker process: reads batches until there are none."""
    while (batch := tasks.get()) is not None:
        for index in batch:
            files.read(index)
        done.put(len(batch))


def make(files, node, nodes):
    writers = [Process(target=files.write, args=(range(node + nodes * part, files.count, nodes * WRITERS),)) for part in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0


def train(files, node, nodes, workers, connection):
    """The process of one node: an epoch for each seed that it is told."""
    tasks, done = SimpleQueue(), SimpleQueue()
    processes = [Process(target=work, args=(files, tasks, done)) for _ in range(workers)]
    for process in processes:
        process.start()
    connection.send("ready")
    while (seed := connection.recv()) is not None:
        order = list(range(files.count))
        random.Random(seed).shuffle(order)
        own = order[node::nodes]
        batches = [own[start : start + BATCH] for start in range(0, len(own), BATCH)]
        for batch in batches:
            tasks.put(batch)
        read = 0
        while read < len(own):
            while done.empty() and all(process.is_alive() for process in processes):
                time.sleep(0.001)
            assert not done.empty(), "a worker has failed"
            read += done.get()
        connection.send(read)
    for _ in processes:
        tasks.put(None)


def child(arguments):
    what, directory, count, kib, node, nodes, workers, address = arguments
    files = Files(os.path.expandvars(directory), int(count), int(kib))
    if what == "make":
        make(files, int(node), int(nodes))
    else:
        with Client(address) as connection:
            train(files, int(node), int(nodes), int(workers), connection)


def on_nodes(what, starts, directory, options, address="-"):
    """A process on each node."""
    words = [sys.executable, __file__, "--child", what, directory, options.files, options.kib]
    return [subprocess.Popen([str(word) for word in [*start, *words, node, len(starts), options.workers, address]])
            for node, start in enumerate(starts)]


def epochs(starts, directory, options, seeds):
    """Seconds of each epoch, and core-seconds of all that ran."""
    seconds, used, address = [], [], f"/dev/shm/trainers-{time.monotonic_ns()}"
    with Listener(address) as listener:
        processes = on_nodes("train", starts, directory, options, address)
        connections = [listener.accept() for _ in processes]
        assert all(connection.recv() == "ready" for connection in connections)
        for seed in seeds:
            began, before = time.monotonic(), slow_server.processor_seconds()
            for connection in connections:
                connection.send(seed)
            assert sum(connection.recv() for connection in connections) == options.files
            seconds.append(time.monotonic() - began)
            used.append(slow_server.processor_seconds() - before)
            print(f"  {seconds[-1]:.1f} s, {used[-1]:.1f} core-s", flush=True)
        for connection in connections:
            connection.send(None)
    assert all([process.wait() == 0 for process in processes])
    return {"epochs": seconds, "core_seconds": used}


def through_job(job, base, options, seeds, warm, words):
    """The same in a job of its own: seconds of warming and of each epoch, and what its agents have counted."""
    job.call("up", "--job", "pool", *job.options)
    try:
        began = time.monotonic()
        if warm:
            job.call("cache", "warm", "--job", "pool", base.mount / "data")
        warmed = time.monotonic() - began if warm else None
        starts = [job.on_node(node, *words) for node in range(options.clients)]
        found = epochs(starts, "$TAMEIKE_CACHE/data", options, seeds)
        return {"warm": warmed, **found, "counted": job.counters()}
    finally:
        job.call("down", "--job", "pool")


def report(runs, base, options):
    lines = ["| | warmed, s | first epoch, s | files/s | of the base | later epochs, s | files/s | of the base | core-s | read of the server, of the data set |",
             "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
    of = {name: [run[name] for run in runs] for name in runs[0]}
    first = {name: statistics.median(run["epochs"][0] for run in some) for name, some in of.items()}
    later = {name: statistics.median(second for run in some for second in run["epochs"][1:]) for name, some in of.items()}
    for name, some in of.items():
        warmed = f"{statistics.median(run['warm'] for run in some):.1f}" if some[0].get("warm") else "-"
        loaded = [run["counted"]["loaded_shared_bytes"] / (options.files * options.kib << 10) for run in some if "counted" in run]
        cells = [name, warmed]
        for seconds in [first, later]:
            cells += [f"{seconds[name]:.2f}", f"{options.files / seconds[name]:,.0f}", f"{seconds[base.name] / seconds[name]:.2f}"]
        cells.append(f"{statistics.median(used for run in some for used in run['core_seconds'][1:]):.1f}")
        lines.append(f"| {' | '.join(cells)} | {f'{statistics.median(loaded):.3f}' if loaded else '-'} |")
    return "\n".join(lines), {"first epoch": first, "later epochs": later}


def measure(options):
    def trained(job, base, out):
        POOL.write_bytes(os.urandom(options.files + (options.kib << 10)))
        data = base.mount / "data"
        users = [base.user(node) for node in range(options.clients)]
        slow_server.output([*users[0], "mkdir", data, *[data / f"{number:03}" for number in range(-(-options.files // PER_DIRECTORY))]])
        assert all([process.wait() == 0 for process in on_nodes("make", users, data, options)])
        runs = []
        for repetition in range(options.repetitions):
            seeds = [repetition * options.epochs + epoch for epoch in range(options.epochs)]
            run = {}
            ways = {"": (False, []), "-warm": (True, []), "-warm-preload": (True, ["--preload"])}
            for name in [base.name, *ways]:
                base.forget()
                print(name or "tameike", flush=True)
                if name == base.name:
                    run[name] = epochs(users, data, options, seeds)
                else:
                    run[f"tameike{name}"] = through_job(job, base, options, seeds, *ways[name])
            runs.append(run)
        table, medians = report(runs, base, options)
        rates = {title: {name: options.files / seconds for name, seconds in some.items()} for title, some in medians.items()}
        (out / "rates.svg").write_text(picture.bars("Files a second, higher is better", "1/s", rates))
        return {"runs": runs}, table

    slow_server.run(options, options.files * options.kib // 1024 * 3 // 2 + 1024, "Epochs over many small files", trained)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    else:
        parser = slow_server.options(__doc__, clients=4, repetitions=1)
        parser.add_argument("--files", type=int, default=20000)
        parser.add_argument("--kib", type=int, default=100, help="size of each file")
        parser.add_argument("--epochs", type=int, default=6)
        parser.add_argument("--workers", type=int, default=2, help="processes that read, on each node")
        measure(parser.parse_args())
