// A subscriber on the system's libzmq. It prints every message as one line: the
// frames in hexadecimal, separated by spaces, "-" for an empty one.
//
//	subscriber sub ENDPOINT TOPIC   receives until it is killed
//	subscriber req ENDPOINT START   asks for a replay with a DEALER socket that
//	                                sends what a REQ socket would, and ends with it
//	subscriber old ENDPOINT START   the same without the empty frame
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

static int print_message(void *socket) {
	int more = 1, first = 1, last_empty = 0;
	while (more) {
		zmq_msg_t m;
		zmq_msg_init(&m);
		if (zmq_msg_recv(&m, socket, 0) < 0)
			return -1;
		size_t n = zmq_msg_size(&m);
		const unsigned char *p = zmq_msg_data(&m);
		if (!first)
			putchar(' ');
		first = 0;
		if (n == 0)
			putchar('-');
		for (size_t i = 0; i < n; i++)
			printf("%02x", p[i]);
		last_empty = n == 0;
		more = zmq_msg_more(&m);
		zmq_msg_close(&m);
	}
	putchar('\n');
	fflush(stdout);
	return last_empty;
}

int main(int argc, char **argv) {
	if (argc != 4)
		return 2;
	void *context = zmq_ctx_new();
	int linger = 0, wait = 20000, ivl = 50;
	if (strcmp(argv[1], "sub") == 0) {
		void *s = zmq_socket(context, ZMQ_SUB);
		zmq_setsockopt(s, ZMQ_LINGER, &linger, sizeof linger);
		zmq_setsockopt(s, ZMQ_RECONNECT_IVL, &ivl, sizeof ivl);
		zmq_setsockopt(s, ZMQ_SUBSCRIBE, argv[3], strlen(argv[3]));
		if (zmq_connect(s, argv[2]) != 0)
			return 1;
		while (print_message(s) >= 0)
			;
		return 0;
	}
	void *s = zmq_socket(context, ZMQ_DEALER);
	zmq_setsockopt(s, ZMQ_LINGER, &linger, sizeof linger);
	zmq_setsockopt(s, ZMQ_RCVTIMEO, &wait, sizeof wait);
	if (zmq_connect(s, argv[2]) != 0)
		return 1;
	uint64_t start = strtoull(argv[3], NULL, 10);
	unsigned char b[8];
	for (int i = 0; i < 8; i++)
		b[i] = start >> (56 - 8 * i);
	if (strcmp(argv[1], "req") == 0)
		zmq_send(s, "", 0, ZMQ_SNDMORE);
	zmq_send(s, b, 8, 0);
	for (;;) {
		int end = print_message(s);
		if (end != 0)
			return end < 0;
	}
}
