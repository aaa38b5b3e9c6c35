"""A subscriber on pyzmq and msgpack. It prints every message as one line of JSON:
{"topic", "seq", "time", "events", "rank"}; bytes are {"hex": "..."}.

    subscriber.py sub ENDPOINT TOPIC COUNT      receives so many messages
    subscriber.py listen ENDPOINT TOPIC COUNT   the same, where the publisher connects
    subscriber.py replay ENDPOINT START         asks for a replay and reads it to its end
"""

import json
import sys

import msgpack
import zmq

PATIENCE = 60_000  # milliseconds without a message


def show(frames):
    topic, seq, payload = frames
    line = {"topic": topic.decode(), "seq": int.from_bytes(seq, "big", signed=True)}
    if payload:
        line["time"], line["events"], line["rank"] = msgpack.unpackb(payload, raw=False)
    print(json.dumps(line, default=lambda b: {"hex": b.hex()}), flush=True)
    return line["seq"]


def main():
    mode, endpoint, what = sys.argv[1:4]
    context = zmq.Context()
    socket = context.socket(zmq.DEALER if mode == "replay" else zmq.SUB)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVTIMEO, PATIENCE)
    if mode != "replay":
        socket.setsockopt_string(zmq.SUBSCRIBE, what)
        if mode == "listen":
            socket.bind(endpoint)
        else:
            socket.connect(endpoint)
        for _ in range(int(sys.argv[4])):
            show(socket.recv_multipart())
        return
    socket.connect(endpoint)
    socket.send_multipart([b"", int(what).to_bytes(8, "big")])
    while True:
        empty, *frames = socket.recv_multipart()
        assert empty == b"", empty
        if show(frames) == -1:
            return


main()
