// SPDX-License-Identifier: MIT
/*
 * pingpong - a kernel that sends back every message of a mailbox, and how long that
 * takes. It needs a real GPU.
 *
 *	pingpong [ROUNDS]	100000 if not given
 */
#include <sched.h>
#include <stdbool.h>
#include <time.h>

#include "../kernel.h"
#include "mailbox.h"

enum { WARM_UP = 1000, GIVE_UP_S = 10, MOST_ROUNDS = 1000000000 };

/*
 * The GPU's steps of mailbox.h, for messages 1 to rounds, with `words` times 8 bytes of
 * data. No more than MAILBOX_SLOTS messages are on their way, for the CPU sends no
 * more: so step 1 of the GPU's sending always finds a slot that is free.
 */
static const char ptx[] =
	".address_size 64\n"
	".visible .entry echo(.param .u64 pgpu, .param .u64 phost, .param .u32 prounds,\n"
	"	.param .u32 pwords, .param .u64 plimit)\n"
	"{\n"
	"	.reg .pred %p<6>;\n"
	"	.reg .b32 %r<8>;\n"
	"	.reg .b64 %rd<16>;\n"
	"	ld.param.u64 %rd1, [pgpu];\n"
	"	ld.param.u64 %rd2, [phost];\n"
	"	ld.param.u32 %r1, [prounds];\n"
	"	ld.param.u32 %r2, [pwords];\n"
	"	ld.param.u64 %rd3, [plimit];\n"
	"	cvta.to.global.u64 %rd1, %rd1;\n"
	"	cvta.to.global.u64 %rd2, %rd2;\n"
	"	mov.u32 %r3, 0;\n"
	"NEXT:\n"
	"	and.b32 %r4, %r3, 63;\n"	/* MAILBOX_SLOTS - 1 */
	"	mul.wide.u32 %rd4, %r4, 64;\n"
	"	add.u64 %rd5, %rd1, %rd4;\n"	/* the slot that the CPU writes */
	"	add.u64 %rd6, %rd2, %rd4;\n"	/* the slot that the GPU writes */
	"	add.u32 %r3, %r3, 1;\n"
	"	setp.gt.u32 %p1, %r3, %r1;\n"
	"	@%p1 bra DONE;\n"
	"	mov.u64 %rd7, %clock64;\n"
	"SPIN:\n"
	"	ld.relaxed.sys.global.u64 %rd8, [%rd5];\n"
	"	shr.u64 %rd9, %rd8, 32;\n"
	"	cvt.u32.u64 %r5, %rd9;\n"
	"	setp.eq.u32 %p2, %r5, %r3;\n"
	"	@%p2 bra SEEN;\n"
	"	mov.u64 %rd10, %clock64;\n"
	"	sub.u64 %rd11, %rd10, %rd7;\n"
	"	setp.lt.u64 %p3, %rd11, %rd3;\n"
	"	@%p3 bra SPIN;\n"
	"	bra DONE;\n"
	"SEEN:\n"
	"	setp.eq.u32 %p4, %r2, 0;\n"
	"	@%p4 bra WORD_ALONE;\n"
	"	fence.acq_rel.sys;\n"
	"	mov.u32 %r6, 0;\n"
	"	mov.u64 %rd12, %rd5;\n"
	"	mov.u64 %rd13, %rd6;\n"
	"DATA:\n"
	"	ld.global.u64 %rd14, [%rd12+8];\n"
	"	st.global.u64 [%rd13+8], %rd14;\n"
	"	add.u64 %rd12, %rd12, 8;\n"
	"	add.u64 %rd13, %rd13, 8;\n"
	"	add.u32 %r6, %r6, 1;\n"
	"	setp.lt.u32 %p5, %r6, %r2;\n"
	"	@%p5 bra DATA;\n"
	"	st.release.sys.global.u64 [%rd6], %rd8;\n"
	"	st.release.sys.global.u32 [%rd2+4096], %r3;\n"	/* host->taken */
	"	bra NEXT;\n"
	"WORD_ALONE:\n"				/* no data, so nothing to order */
	"	st.relaxed.sys.global.u64 [%rd6], %rd8;\n"
	"	st.relaxed.sys.global.u32 [%rd2+4096], %r3;\n"
	"	bra NEXT;\n"
	"DONE:\n"
	"	ret;\n"
	"}\n";

_Static_assert(MAILBOX_SLOTS == 64 && offsetof(struct mailbox_ring, taken) == 4096,
	       "the kernel knows the layout");

struct game {
	CUfunction echo;
	struct example_memory gpu;
	struct mailbox_ring *host;
	CUdeviceptr host_dev;
	double *ns;	/* of each round */
};

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static CUstream start(struct game *g, struct mailbox *m, unsigned int rounds, unsigned int words)
{
	unsigned long long limit = 2000000000ull * GIVE_UP_S;	/* clocks of the GPU */
	void *params[] = { &g->gpu.dev, &g->host_dev, &rounds, &words, &limit };

	gdr(mailbox_init(m, g->gpu.mh, g->gpu.cpu, g->host), "mailbox_init");
	return kernel_start(g->echo, params);
}

/* Whether to try again after err. It looks at the clock each 1024 tries; w begins as zero. */
struct wait {
	unsigned int tries;
	double end;
};

static int again(struct wait *w, int err)
{
	if (err != EAGAIN || ++w->tries % 1024)
		return err == EAGAIN;
	if (!w->end)
		w->end = now_ns() + GIVE_UP_S * 1e9;
	return now_ns() < w->end;
}

/* Waits for the next message, which must be number n's echo. */
static void receive(struct mailbox *m, unsigned int n, size_t size)
{
	unsigned char got[MAILBOX_DATA], want[MAILBOX_DATA];
	struct wait w = { 0 };
	uint32_t word;
	int err;

	do
		err = mailbox_receive(m, &word, got, size);
	while (again(&w, err));
	gdr(err, "mailbox_receive");
	memset(want, (int)n, size);
	if (word != (n ^ 0x5a5a5a5a) || memcmp(got, want, size)) {
		fprintf(stderr, "message %u came back changed\n", n);
		exit(1);
	}
}

/* Waits for room, too: an echo may be here before the word that its slot is free. */
static void send(struct mailbox *m, unsigned int n, size_t size)
{
	unsigned char data[MAILBOX_DATA];
	struct wait w = { 0 };
	int err;

	memset(data, (int)n, size);
	do
		err = mailbox_send(m, n ^ 0x5a5a5a5a, data, size);
	while (again(&w, err));
	gdr(err, "mailbox_send");
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void ping_pong(struct game *g, unsigned int rounds, size_t size)
{
	struct mailbox m;
	CUstream stream = start(g, &m, rounds + WARM_UP, (unsigned int)size / 8);
	unsigned int n;

	for (n = 1; n <= rounds + WARM_UP; n++) {
		double t0 = now_ns();

		send(&m, n, size);
		receive(&m, n, size);
		if (n > WARM_UP)
			g->ns[n - WARM_UP - 1] = now_ns() - t0;
	}
	cu(cuStreamSynchronize(stream), "cuStreamSynchronize");
	qsort(g->ns, rounds, sizeof(*g->ns), by_value);
	printf("round trip, %2zu bytes and a word: best %5.0f ns, median %5.0f, 99 %% %5.0f, worst %.0f (%u rounds)\n",
	       size, g->ns[0], g->ns[rounds / 2], g->ns[(size_t)rounds * 99 / 100], g->ns[rounds - 1], rounds);
}

/* As many messages on their way as the rings hold. */
static void stream_of(struct game *g, unsigned int rounds, size_t size)
{
	unsigned int sent = 0, received = 0;
	struct mailbox m;
	CUstream stream = start(g, &m, rounds, (unsigned int)size / 8);
	double t0 = now_ns(), s;

	while (received < rounds) {
		while (sent < rounds && sent - received < MAILBOX_SLOTS)
			send(&m, ++sent, size);
		receive(&m, ++received, size);
	}
	s = (now_ns() - t0) / 1e9;
	cu(cuStreamSynchronize(stream), "cuStreamSynchronize");
	printf("stream,     %2zu bytes and a word: %.2f million messages/s there and back\n", size,
	       rounds / s / 1e6);
}

/* The argument, or 0 if it is no number of rounds. */
static unsigned int rounds_of(const char *text)
{
	char *end;
	long n = strtol(text, &end, 10);

	return end == text || *end || n < 1 || n > MOST_ROUNDS ? 0 : (unsigned int)n;
}

int main(int argc, char **argv)
{
	unsigned int rounds = argc > 1 ? rounds_of(argv[1]) : 100000;
	char name[128] = "";
	struct game game;
	CUdevice dev;
	gdr_t g;

	if (!rounds || argc > 2) {
		fprintf(stderr, "usage: pingpong [ROUNDS], 1 to %d\n", MOST_ROUNDS);
		return 1;
	}
	example_context();
	if (!kernel_possible()) {
		printf("this libcuda.so.1 runs no kernels: pingpong needs a real GPU\n");
		return EXAMPLE_NO_GPU;
	}
	cu(cuDeviceGet(&dev, 0), "cuDeviceGet");
	cu(cuDeviceGetName(name, sizeof(name), dev), "cuDeviceGetName");
	printf("GPU: %s\n", name);
	g = example_open();
	example_map(g, &game.gpu, GPU_PAGE_SIZE);
	game.host = kernel_host_memory(sizeof(*game.host), &game.host_dev);
	game.echo = kernel_load(ptx, "echo");
	game.ns = calloc(rounds, sizeof(*game.ns));
	if (!game.ns)
		gdr(ENOMEM, "calloc");
	ping_pong(&game, rounds, 0);
	ping_pong(&game, rounds, 8);
	ping_pong(&game, rounds, MAILBOX_DATA);
	stream_of(&game, rounds, 0);
	stream_of(&game, rounds, MAILBOX_DATA);
	free(game.ns);
	example_unmap(g, &game.gpu);
	gdr(gdr_close(g), "gdr_close");
	return 0;
}
