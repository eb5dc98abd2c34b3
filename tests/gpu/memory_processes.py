"""Processes that own, hold and read device memory: `python memory_processes.py DEVICE ROUNDS`.

The first process, which holds descriptors, never uses CUDA; its children do. It prints one JSON
object: in how many rounds memory was read as it was written, and how fast.
"""

import json
import os
import signal
import socket
import sys
import time

import torch

from holdfast.arena.device.memory import allocate, open_peer

SIZE = 64 << 20
READS = 10


def pattern(device, seed):
    words = torch.arange(SIZE // 8, device=device)
    return (words * 0x9E3779B97F4A7C1 + seed).view(torch.uint8)


def started(work, *arguments):
    """A child that does `work` with one end of a socket; returns its pid and the other end."""
    near, far = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        near.close()
        try:
            work(far, *arguments)
        finally:
            os._exit(0)
    far.close()
    return pid, near


def own(sock, device, seed, *, is_busy=False):
    """Allocate and write memory, and send its descriptor; then compute, or read that of another."""
    memory = allocate(device, SIZE)
    memory.bytes[:SIZE] = pattern(device, seed)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    socket.send_fds(sock, [b"owned"], [memory.fd])
    os.close(memory.fd)
    values = torch.randn(1024, 1024, device=device)
    while is_busy:
        values = torch.tanh(values @ values)
    read(sock, device)


def read(sock, device):
    """Read memory whose descriptors come, and answer whether it has the pattern that is named."""
    found = torch.empty(SIZE, dtype=torch.uint8, device=device)
    while True:
        data, fds, _, _ = socket.recv_fds(sock, 64, 1)
        if not data:
            return
        peer = open_peer(device, fds[0], SIZE)
        peer.read(0, found)  # the first one maps pages
        wait(device)
        began = time.perf_counter()
        for _ in range(READS):
            peer.read(0, found)
        wait(device)
        seconds = (time.perf_counter() - began) / READS
        is_same = torch.equal(found, pattern(device, int(data)))
        peer.close()
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
        answer = {"is_same": is_same, "gb_per_s": SIZE / seconds / 1e9, "free": free}
        sock.sendall(json.dumps(answer).encode())


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def asked(sock, fd, seed):
    """The answer of a reader to a descriptor."""
    socket.send_fds(sock, [str(seed).encode()], [fd])
    return json.loads(sock.recv(1024))


def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def outlives(device, rounds):
    """Owners that are killed while they compute; what one reader finds in their memory."""
    reader_pid, reader = started(read, device)
    answers = []
    for seed in range(rounds):
        pid, sock = started(lambda *given: own(*given, is_busy=True), device, seed)
        fd = socket.recv_fds(sock, 64, 1)[1][0]
        end(pid)
        answers.append(asked(reader, fd, seed))
        os.close(fd)
    end(reader_pid)
    # With memory left behind there would be less of it from round to round.
    is_freed = answers[-1]["free"] >= answers[0]["free"] - SIZE // 2
    return {"same": sum(each["is_same"] for each in answers), "is_freed": is_freed}


def pairs(first, second):
    """Two owners that read each other's memory."""
    owners = [started(own, device, seed) for seed, device in enumerate((first, second))]
    fds = [socket.recv_fds(sock, 64, 1)[1][0] for _, sock in owners]
    answers = [asked(owners[1 - seed][1], fd, seed) for seed, fd in enumerate(fds)]
    for pid, _ in owners:
        end(pid)
    return {
        "same": sum(each["is_same"] for each in answers),
        "gb_per_s": min(each["gb_per_s"] for each in answers),
    }


def main(kind, rounds, second):
    first = torch.device(kind, 0) if kind == "cuda" else torch.device(kind)
    other = torch.device(kind, int(second)) if kind == "cuda" else first
    found = outlives(first, int(rounds)) if int(rounds) else pairs(first, other)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
