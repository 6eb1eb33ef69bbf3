#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Notes in a JSON file as a tree: an Outrigger driver in Python. docs/PROTOCOL.md describes the messages.

    echo '{}' > notes.json
    outrigger --driver-program notes=./notes.py mount notes://notes.json /mnt
"""
import errno, io, json, os, socket, struct, sys, time

LOOKUP, GETATTR, SETATTR, UNLINK, RENAME, CREATE, READ, WRITE, READDIR = 1, 3, 4, 10, 12, 14, 16, 17, 25
CHANGES = (SETATTR, UNLINK, RENAME, CREATE, WRITE)
# How this program encodes each operation: the numbers that docs/PROTOCOL.md has for it.
LAYOUTS = {LOOKUP: 0xe708de8e, GETATTR: 0xd20470a0, SETATTR: 0x5b69c7bc, UNLINK: 0xa7948eed, RENAME: 0xaaae49d8,
           CREATE: 0x032a81d2, READ: 0x1b23cea0, WRITE: 0x048d3200, READDIR: 0x6df28a10}
SOCKET = socket.socket(fileno=os.dup(0))


def take(stream, form):
    values = struct.unpack("<" + form, stream.read(struct.calcsize("<" + form)))
    return values if len(values) > 1 else values[0]


def take_bytes(stream):
    return stream.read(take(stream, "I"))


def pack_bytes(data):
    return struct.pack("<I", len(data)) + data


def receive_frame():
    length = struct.unpack("<I", SOCKET.recv(4, socket.MSG_WAITALL) or sys.exit())[0]
    stream = io.BytesIO(SOCKET.recv(length, socket.MSG_WAITALL))
    return *take(stream, "BQ"), stream


def send_frame(kind, number, body):
    SOCKET.sendall(struct.pack("<IBQ", 9 + len(body), kind, number) + body)


def change(notes, name, text):
    # A number is never given out again: the removed note that had it may still be open.
    node = notes[name]["node"] if name in notes else time.time_ns()
    notes[name] = {"node": node, "text": text.decode("latin-1"), "time": int(time.time())}


def pack_attr(notes, name):
    note = notes.get(name, {"node": 1, "text": "", "time": 0})
    mode = 0o100644 if name else 0o040755
    times = struct.pack("<qI", note["time"], 0) * 3 + b"\0"
    return struct.pack("<QQQ", note["node"], len(note["text"]), 0) + times + struct.pack("<6I2QI", mode, 1, 0, 0, 0, 4096, 0, 0, 0)


def carry_out(notes, operation, ask):
    """The number of the reply, and its content."""
    node = take(ask, "Q")
    name = next((name for name, note in notes.items() if note["node"] == node), "")
    if node != 1 and not name:
        raise OSError(errno.ESTALE, "the note was removed")
    text = notes[name]["text"].encode("latin-1") if name else b""
    if operation in (LOOKUP, UNLINK, RENAME, CREATE):
        name = os.fsdecode(take_bytes(ask))
        if operation == CREATE and name not in notes:
            change(notes, name, b"")
        if name not in notes:
            raise OSError(errno.ENOENT, f"there is no note {name!r}")
        if operation == UNLINK:
            del notes[name]
            return 1, b""
        if operation == RENAME:
            take(ask, "Q")
            new, flags = os.fsdecode(take_bytes(ask)), take(ask, "I")
            if flags:
                raise OSError(errno.EINVAL, "notes are not exchanged")
            notes[new] = notes.pop(name)
            return 1, b""
        entry = struct.pack("<QQ", notes[name]["node"], 0) + pack_attr(notes, name) + bytes(8)
        return (2, entry) if operation == LOOKUP else (7, entry + bytes(12))
    if operation == READDIR:
        cookie = take(ask, "QQ")[1]
        rest = sorted((note["node"], os.fsencode(name)) for name, note in notes.items() if note["node"] > cookie)
        entries = [struct.pack("<QQBB", node, node, 1, 8) + pack_bytes(name) for node, name in rest[:1000]]
        return 11, struct.pack("<I", len(entries)) + b"".join(entries) + bytes([len(rest) <= 1000])
    if operation == READ:
        _, start, length = take(ask, "QQI")
        return 8, pack_bytes(text[start:start + length])
    if operation == WRITE:
        start, data = take(ask, "QQ")[1], take_bytes(ask)
        change(notes, name, text[:start].ljust(start, b"\0") + data + text[start + len(data):])
        return 9, struct.pack("<Q", len(data))
    if operation == SETATTR:
        take(ask, "B") and take(ask, "Q")
        size = [take(ask, form) if take(ask, "B") else None for form in "IIIQ"][3]
        if name:  # The directory has nothing that could be set.
            change(notes, name, text if size is None else text[:size].ljust(size, b"\0"))
    return 4, pack_attr(notes, name) + bytes(4)


def pack_error(error):
    return struct.pack("<iB", error.errno, 1) + pack_bytes(str(error.strerror).encode())


SOCKET.sendall(b"ORIG\0\0")
SOCKET.recv(6, socket.MSG_WAITALL)
offer = io.BytesIO(take_bytes(receive_frame()[2]))
path, notes, refusal = os.fsdecode(take_bytes(offer)), {}, b"\0"
try:
    notes = json.load(open(path))
except OSError as error:
    refusal = b"\1" + pack_error(OSError(error.errno, "the notes cannot be read"))
operations = struct.pack("<I", len(LAYOUTS)) + b"".join(struct.pack("<HI", *pair) for pair in LAYOUTS.items())
send_frame(4, 0, pack_bytes(refusal + pack_bytes(path.encode()) + struct.pack("<BBI", 1, 0, 1 << 20) + operations))
while True:
    kind, number, ask = receive_frame()
    if kind != 1:  # A request that is cancelled is answered all the same.
        continue
    take_bytes(ask)  # On whose behalf, and until when.
    operation = take(ask, "H")
    try:
        reply, content = carry_out(notes, operation, ask)
        if operation in CHANGES:
            json.dump(notes, open(path + ".new", "w"))
            os.replace(path + ".new", path)
    except OSError as error:
        reply, content = 0, pack_error(error)
    send_frame(2, number, struct.pack("<H", reply) + content)
