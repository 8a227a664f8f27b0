// SPDX-License-Identifier: MIT
/*
 * ext/words.c - the words by which a stream shows that it is done (capi/words.c), and the
 * ring of chunks (capi/ring.c), with a stream of this program's: a thread that does one
 * thing after the other.
 *
 * Many threads use the stream at the same time. A wait that ends before its own copy was
 * made shows in the copied bytes. The thread sanitizer sees also that the word alone
 * orders the two.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "ring.h"
#include "tap.h"
#include "words.h"

enum { QUEUE = 256, CALLERS = 8, ROUNDS = 3000, READERS = 3, READS = 30 };

/* What the stream has to do: copy n bytes, or write value to word. */
struct work {
	void *dst;
	const void *src;
	size_t n;
	_Atomic uint32_t *word;
	uint32_t value;
};

static struct stream {
	pthread_mutex_t lock;
	pthread_cond_t change;
	struct work queue[QUEUE];
	uint64_t in, out;	/* how much was put in, and is done */
	bool stopped;		/* it does nothing, but for syncs */
	bool fast;		/* it is mostly done before its thread has run */
	_Atomic bool slow;		/* its thread sleeps after each work */
} stream = { .fast = true, .lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER };

static _Atomic int syncs, locked, write_result, sync_result, address_result;
static struct tap tap;

static void do_one(void)
{
	struct work w = stream.queue[stream.out % QUEUE];

	if (w.n)
		memcpy(w.dst, w.src, w.n);
	if (w.word)
		atomic_store_explicit(w.word, w.value, memory_order_release);
	stream.out++;
	pthread_cond_broadcast(&stream.change);
}

static void *run_stream(void *unused)
{
	pthread_mutex_lock(&stream.lock);
	for (;;) {
		while (stream.stopped || stream.in == stream.out)
			pthread_cond_wait(&stream.change, &stream.lock);
		do_one();
		/* Others put in more meanwhile. */
		pthread_mutex_unlock(&stream.lock);
		if (stream.slow)
			usleep(200);
		pthread_mutex_lock(&stream.lock);
	}
	return unused;
}

static void put_in(struct work w)
{
	pthread_mutex_lock(&stream.lock);
	while (stream.in - stream.out == QUEUE)
		pthread_cond_wait(&stream.change, &stream.lock);
	stream.queue[stream.in++ % QUEUE] = w;
	while (stream.fast && !stream.stopped && stream.in % 8 && stream.out < stream.in)
		do_one();
	pthread_cond_broadcast(&stream.change);
	pthread_mutex_unlock(&stream.lock);
}

static void stop(bool stopped)
{
	pthread_mutex_lock(&stream.lock);
	stream.stopped = stopped;
	pthread_cond_broadcast(&stream.change);
	pthread_mutex_unlock(&stream.lock);
}

/* The driver's functions. */
static int sync_stream(void *s)
{
	uint64_t until;

	(void)s;
	atomic_fetch_add(&syncs, 1);
	if (atomic_load(&sync_result))
		return atomic_load(&sync_result);
	pthread_mutex_lock(&stream.lock);
	until = stream.in;
	while (stream.out < until) {
		if (stream.stopped)
			do_one();
		else
			pthread_cond_wait(&stream.change, &stream.lock);
	}
	pthread_mutex_unlock(&stream.lock);
	return 0;
}

static int write_value(void *s, uint64_t at, uint32_t value, unsigned int flags)
{
	if (s != &stream || flags || at % 4)
		return 1;
	if (atomic_load(&write_result))
		return atomic_load(&write_result);
	put_in((struct work){ .word = (_Atomic uint32_t *)(uintptr_t)at, .value = value });
	return 0;
}

static int lock_memory(void *addr, size_t n, unsigned int flags)
{
	atomic_fetch_add(&locked, 1);
	return !addr || !n || flags != 2;
}

static int unlock_memory(void *addr)
{
	atomic_fetch_sub(&locked, 1);
	return !addr;
}

static int gpu_address(uint64_t *at, void *addr, unsigned int flags)
{
	*at = (uintptr_t)addr;
	return flags ? 1 : atomic_load(&address_result);
}

static int exchange_mode(int *mode)
{
	static int current;
	int was = current;

	current = *mode;
	*mode = was;
	return 0;
}

static const char *lacks = "";

bool gdr_driver_find(const char *name, void *place)
{
	static const struct {
		const char *name;
		void *f;
	} known[] = {
		{ "cuStreamWriteValue32_v2", write_value },
		{ "cuMemHostRegister_v2", lock_memory },
		{ "cuMemHostUnregister", unlock_memory },
		{ "cuMemHostGetDevicePointer_v2", gpu_address },
		{ "cuThreadExchangeStreamCaptureMode", exchange_mode },
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (!strcmp(name, known[i].name) && strcmp(name, lacks)) {
			*(void **)place = known[i].f;
			return true;
		}
	return false;
}

static struct gdr_words started(void)
{
	struct gdr_words words = { 0 };

	gdr_words_start(&words, &stream, sync_stream);
	return words;
}

/* A copy, and how the wait for it ended. */
static int copy_and_wait(struct gdr_words *words, int *mark)
{
	static const int one = 1;

	*mark = 0;
	put_in((struct work){ .dst = mark, .src = &one, .n = sizeof(one) });
	return gdr_words_wait(words, gdr_words_ask(words));
}

static void by_one(void)
{
	struct gdr_words words = started();
	int mark, before;

	tap_ok(&tap, words.free == UINT64_MAX && atomic_load(&locked) == 1, "words are made");
	stop(true);
	before = atomic_load(&syncs);
	tap_ok(&tap, copy_and_wait(&words, &mark) == 0 && mark && atomic_load(&syncs) == before + 1,
	       "where the word does not come, the driver is asked");
	stop(false);
	atomic_store(&write_result, 801);
	tap_ok(&tap, copy_and_wait(&words, &mark) == 0 && mark,
	       "where it cannot be written, the driver is asked");
	atomic_store(&write_result, 0);
	tap_ok(&tap, words.free == UINT64_MAX, "all words are free again");
	stop(true);
	atomic_store(&sync_result, 700);
	for (int i = 0; i < 70; i++)
		if (copy_and_wait(&words, &mark) != 700)
			tap_ok(&tap, false, "the driver's answer is passed on");
	tap_ok(&tap, words.free == 0, "a word that the stream may still write to stays taken");
	atomic_store(&sync_result, 0);
	sync_stream(&stream);
	stop(false);
	tap_ok(&tap, copy_and_wait(&words, &mark) == 0 && mark, "without words the driver is asked");
}

static void not_made(void)
{
	static const char *const names[] = {
		"cuStreamWriteValue32_v2", "cuMemHostRegister_v2", "cuMemHostUnregister",
		"cuMemHostGetDevicePointer_v2", "cuThreadExchangeStreamCaptureMode",
	};
	int before = atomic_load(&locked);
	struct gdr_words words;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		lacks = names[i];
		words = started();
		tap_ok(&tap, !words.free, "no words without %s", names[i]);
	}
	lacks = "";
	atomic_store(&write_result, 801);
	words = started();
	atomic_store(&write_result, 0);
	tap_ok(&tap, !words.free && atomic_load(&locked) == before,
	       "no words where the stream writes none, and no memory stays locked");
	atomic_store(&address_result, 1);
	words = started();
	atomic_store(&address_result, 0);
	tap_ok(&tap, !words.free && atomic_load(&locked) == before,
	       "no words where the GPU has no address of them");
}

static struct gdr_words shared;

static void *call(void *arg)
{
	unsigned int *early = arg;
	int mark;

	for (int i = 0; i < ROUNDS; i++)
		*early += copy_and_wait(&shared, &mark) != 0 || !mark;
	return NULL;
}

static void by_many(void)
{
	unsigned int early[CALLERS] = { 0 }, sum = 0;
	int before = atomic_load(&syncs);
	pthread_t t[CALLERS];

	shared = started();
	for (int i = 0; i < CALLERS; i++)
		if (pthread_create(&t[i], NULL, call, &early[i]))
			abort();
	for (int i = 0; i < CALLERS; i++) {
		pthread_join(t[i], NULL);
		sum += early[i];
	}
	tap_is(&tap, sum, 0, "no wait of many threads ends too early");
	tap_ok(&tap, shared.free == UINT64_MAX, "all words are free at the end");
	printf("# %d of %d waits asked the driver\n", atomic_load(&syncs) - before, CALLERS * ROUNDS);
}

/* The ring. */

static struct gdr_ring ring;
static uint8_t device[3u << 20];
static _Atomic int by_ring, from_result, from_calls;

static int from_device(void *dst, uint64_t src, size_t n, void *s)
{
	/* The third call of one read fails, if any shall. */
	if (s != &stream || (atomic_load(&from_result) && atomic_fetch_add(&from_calls, 1) == 2))
		return 1;
	put_in((struct work){ .dst = dst, .src = (const void *)(uintptr_t)src, .n = n });
	return 0;
}

static void copy_out(const void *arg, void *to, void *locked_memory, size_t n)
{
	(void)arg;
	memcpy(to, locked_memory, n);
}

static int read_some(uint8_t *host, size_t at, size_t n)
{
	const struct gdr_ring_read r = {
		.src = (uintptr_t)device + at, .host = host, .n = n, .from = from_device,
		.out = copy_out,
	};

	if (!gdr_ring_take(&ring))
		return -1;
	atomic_fetch_add(&by_ring, 1);
	return gdr_ring_read(&ring, &shared, &r);
}

static void *read_often(void *arg)
{
	unsigned int *bad = arg;
	uint8_t *host = malloc(sizeof(device) + 1);

	for (size_t i = 0; i < READS; i++) {
		size_t at = i * 4097, n = sizeof(device) - at - i * i * 2003;
		int rc;

		memset(host, 0x5a, n + 1);
		while ((rc = read_some(host, at, n)) < 0)
			sched_yield();
		*bad += rc || memcmp(host, device + at, n) || host[n] != 0x5a;
	}
	free(host);
	return NULL;
}

static void ring_by_many(void)
{
	unsigned int bad[READERS] = { 0 }, sum = 0;
	pthread_t t[READERS];

	for (size_t i = 0; i < sizeof(device); i++)
		device[i] = (uint8_t)(i * 7 + i / 251);
	stream.fast = false;
	tap_ok(&tap, !gdr_ring_take(&ring), "there is no ring at first");
	gdr_ring_start(&ring);
	for (int i = 0; i < READERS; i++)
		if (pthread_create(&t[i], NULL, read_often, &bad[i]))
			abort();
	for (int i = 0; i < READERS; i++) {
		pthread_join(t[i], NULL);
		sum += bad[i];
	}
	tap_is(&tap, sum, 0, "reads by the ring");
	tap_is(&tap, atomic_load(&by_ring), READERS * READS, "how many had it");
}

/* Each chunk comes long after the one before is copied out. */
static void ring_of_slow_stream(void)
{
	uint8_t *host = calloc(1, sizeof(device));

	stream.slow = true;
	tap_ok(&tap, !read_some(host, 0, sizeof(device)) && !memcmp(host, device, sizeof(device)),
	       "a read from a slow stream");
	stream.slow = false;
	free(host);
}

static void ring_fails(void)
{
	uint8_t *host = malloc(sizeof(device));

	atomic_store(&from_result, 1);
	tap_is(&tap, read_some(host, 0, sizeof(device)), 1, "the driver's answer is passed on");
	atomic_store(&from_result, 0);
	tap_is(&tap, read_some(host, 0, sizeof(device)), -1,
	       "a ring that the stream may still write to stays taken");
	free(host);
}

int main(void)
{
	pthread_t engine;

	if (pthread_create(&engine, NULL, run_stream, NULL))
		abort();
	by_one();
	not_made();
	by_many();
	ring_by_many();
	ring_of_slow_stream();
	ring_fails();
	return tap_done(&tap);
}
