// SPDX-License-Identifier: MIT
/*
 * ext/engine.c - a GPU's copy engine (capi/long/engine.c), with a driver of this program's,
 * whose stream is a thread that does one thing after the other.
 *
 * Many threads use the stream at the same time. A wait that ends before its own copy was
 * made shows in the copied bytes. The thread sanitizer sees also that the word alone
 * orders the two.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "long/engine.h"
#include "tap.h"

enum { QUEUE = 256, CALLERS = 8, ROUNDS = 1000, COPIERS = 3, COPIES = 30, PINNED_SLOTS = 56, MORE = 4 };
enum { MEMORY_TYPE = 2, BUFFER_ID = 7 };

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

static _Atomic int syncs, writes, write_result, sync_result;
static _Atomic int push_result, exchange_result;
static uint32_t newest[64];	/* the last value that was asked of each word */
static _Atomic int copy_result;	/* what a copy answers, after copies_left others */
static _Atomic bool was_reset;
static _Atomic uint64_t buffer_id = 7;
static uint8_t device[3u << 20];
static uint8_t pinned[1u << 20];	/* page-locked by the host */
static char context;
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

static __thread int mode, pushed;

/* Each call of a stream is made in the stream's context, and in the relaxed mode. */
static void must_be_inside(const void *s)
{
	if (mode != 2 || pushed != 1 || s != &stream || atomic_load(&was_reset))
		abort();
}

static int sync_stream(void *s)
{
	uint64_t until;

	must_be_inside(s);
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
	must_be_inside(s);
	if (flags || at % 4)
		return 1;
	if (atomic_load(&write_result))
		return atomic_load(&write_result);
	atomic_fetch_add(&writes, 1);
	/* A value that was asked before may come late, and look like this one. */
	if ((int32_t)(value - newest[at / 64 % 64]) <= 0)
		abort();
	newest[at / 64 % 64] = value;
	put_in((struct work){ .word = (_Atomic uint32_t *)(uintptr_t)at, .value = value });
	return 0;
}

static _Atomic int copies_left;
static _Atomic bool is_held;	/* copies do not begin */
static _Atomic int held, refused;

static int copy_to(uint64_t dst, const void *src, size_t n, void *s)
{
	must_be_inside(s);
	if (atomic_load(&copy_result) && atomic_fetch_sub(&copies_left, 1) == 1)
		return atomic_exchange(&copy_result, 0);
	for (atomic_fetch_add(&held, atomic_load(&is_held)); atomic_load(&is_held);)
		usleep(100);
	put_in((struct work){ .dst = (void *)(uintptr_t)dst, .src = src, .n = n });
	return 0;
}

static int copy_from(void *dst, uint64_t src, size_t n, void *s)
{
	return copy_to((uintptr_t)dst, (const void *)(uintptr_t)src, n, s);
}

static int exchange_mode(int *new_mode)
{
	int was = mode;

	if (atomic_load(&exchange_result))
		return atomic_load(&exchange_result);
	mode = *new_mode;
	*new_mode = was;
	return 0;
}

static int push(void *ctx)
{
	return atomic_load(&push_result) ? atomic_load(&push_result) : ctx != &context || pushed++;
}

static int pop(void **ctx)
{
	*ctx = &context;
	pushed--;
	return 0;
}

static struct gdr_engine *engine;
static _Atomic int ids_asked;

static uint64_t attribute(int name, uint64_t ptr)
{
	bool of_device = ptr - (uintptr_t)device < sizeof(device);

	atomic_fetch_add(&ids_asked, name == BUFFER_ID);
	switch (name) {
	case MEMORY_TYPE:
		return ptr - (uintptr_t)pinned < sizeof(pinned) ||
		       (ptr == (uintptr_t)engine && !atomic_load(&was_reset));
	case BUFFER_ID: return of_device ? atomic_load(&buffer_id) : 0;
	default: return 0;
	}
}

static int attributes(unsigned int n, int *names, void **values, uint64_t ptr)
{
	for (unsigned int i = 0; i < n; i++) {
		uint64_t value = attribute(names[i], ptr);

		memcpy(values[i], &value, names[i] == MEMORY_TYPE ? 4 : 8);
	}
	return 0;
}

static struct gdr_extents *memory;
static bool writes_words = true;

/* What Go makes: memory that is page-locked, which begins the engine, and what a pin has. */
static void start(void)
{
	engine = mmap(NULL, gdr_engine_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memory = malloc(sizeof(*memory) + sizeof(memory->at[0]));
	if (engine == MAP_FAILED || !memory)
		abort();
	memory->count = 1;
	memory->at[0] = (struct gdr_extent){ (uintptr_t)device, (uintptr_t)device + sizeof(device), buffer_id };
	memset(newest, 0, sizeof(newest));
	gdr_engine_begin(engine, &(struct gdr_engine_parts){
		.unscoped = {
			.attributes = attributes, .push = push, .pop = pop, .stream_wait = sync_stream,
			.to = copy_to, .from = copy_from, .write = write_value, .exchange_mode = exchange_mode,
		},
		.ctx = &context, .stream = &stream, .gpu_at = (uintptr_t)engine, .writes_words = writes_words,
	});
}

/* arg says whether the copy is a write. */
static void stage(const void *arg, void *host, void *chunk, size_t n)
{
	const bool *to = arg;

	if (mode || pushed)
		abort();
	memcpy(*to ? chunk : host, *to ? host : chunk, n);
}

static bool is_pinned(const void *host)
{
	return (uintptr_t)host - (uintptr_t)pinned < sizeof(pinned);
}

static int copy(bool to, size_t at, void *host, size_t n, const void *owner)
{
	const struct gdr_engine_copy c = {
		.at = (uintptr_t)device + at, .host = host, .n = n, .to = to,
		.locked = is_pinned(host), .memory = memory, .owner = owner, .stage = stage, .arg = &to,
	};

	return gdr_engine_copy(engine, &c);
}

static const struct record {
	_Alignas(64) char line[64];
} owners[64];

static bool reads(size_t at, uint8_t *host, size_t n, int owner)
{
	memset(host, 0x5a, n);
	return !copy(false, at, host, n, &owners[owner]) && !memcmp(host, device + at, n);
}

static void by_one(void)
{
	static uint8_t host[1u << 20];
	int before;

	tap_ok(&tap, gdr_engine_is_locked(engine, pinned) && !gdr_engine_is_locked(engine, host),
	       "which memory is page-locked");
	before = atomic_load(&syncs);
	tap_ok(&tap, reads(3, pinned, 70000, 0) && reads(3, host, sizeof(host), 0), "reads");
	tap_is(&tap, atomic_load(&syncs), before, "calls of cuStreamSynchronize");
	stop(true);
	tap_ok(&tap, reads(5, pinned, 7000, 0) && atomic_load(&syncs) == before + 1,
	       "where the word does not come, the driver is asked");
	stop(false);
	atomic_store(&write_result, 801);
	tap_ok(&tap, reads(9, pinned, 7000, 0) && reads(9, host, sizeof(host), 0),
	       "where it cannot be written, the driver is asked");
	atomic_store(&write_result, 0);
}

/* A stream that writes no words is asked for none. */
static void without_words(void)
{
	static uint8_t host[1u << 20];
	int before = atomic_load(&writes);

	writes_words = false;
	start();
	tap_ok(&tap, reads(3, host, sizeof(host), 0) && reads(5, pinned, 7000, 0), "reads without words");
	tap_is(&tap, atomic_load(&writes), before, "words that are asked for in vain");
	writes_words = true;
	start();
}

/* The thread's capture mode is what it was, also where a call fails; then nothing is begun. */
static void leaves_the_thread(void)
{
	uint8_t first = device[0];

	for (int m = 0; m < 3; m++) {
		mode = m;
		tap_ok(&tap, !copy(false, 0, pinned, 4096, &owners[0]) && mode == m && !pushed,
		       "a copy in capture mode %d leaves it", m);
		atomic_store(&push_result, 201);
		tap_ok(&tap, copy(true, 0, pinned + 1, 4096, &owners[0]) == 201 && mode == m && !pushed,
		       "and one whose context cannot be pushed");
		atomic_store(&push_result, 0);
		atomic_store(&exchange_result, 202);
		tap_ok(&tap, copy(true, 0, pinned + 1, 4096, &owners[0]) == 202 && mode == m && !pushed,
		       "and one whose mode cannot be exchanged");
		atomic_store(&exchange_result, 0);
	}
	mode = 0;
	tap_ok(&tap, device[0] == first, "what failed wrote nothing");
}

/* Slots that may still be written to are not used, until the stream was found idle. */
static void fails(void)
{
	static uint8_t host[3u << 20];

	for (int i = 0; i < 100; i++) {
		atomic_store(&copies_left, 1 + i % 7);
		atomic_store(&copy_result, 700);
		if (copy(i % 2, 0, host, sizeof(host), &owners[0]) != 700)
			tap_ok(&tap, false, "the driver's answer is passed on");
	}
	for (int i = 0; i < 2; i++) {
		stop(true);
		atomic_store(&copies_left, 3);
		atomic_store(&copy_result, 700);
		copy(true, 0, host, sizeof(host), &owners[0]);
		memset(device, i, sizeof(device));
		stop(false);
		memset(host, !i, sizeof(host));
		tap_ok(&tap, reads(0, host, 4096, 0) && device[0] == i && device[300000] == i,
		       "nothing lands after a copy that failed");
	}
	stop(true);
	atomic_store(&sync_result, 700);
	for (int i = 0; i < 70; i++)
		if (copy(false, 0, pinned, 4096, &owners[0]) != 700)
			tap_ok(&tap, false, "the driver's answer is passed on");
	atomic_store(&sync_result, 0);
	stop(false);
	tap_ok(&tap, reads(1, host, sizeof(host) - 1, 0) && reads(1, pinned, 4096, 0),
	       "the engine works again");
}

static jmp_buf left;

static void leave(const void *arg, void *host, void *chunk, size_t n)
{
	(void)arg, (void)host, (void)chunk, (void)n;
	longjmp(left, 1);
}

static void is_left(void)
{
	static uint8_t host[3u << 20];
	struct gdr_engine_copy c = {
		.at = (uintptr_t)device, .host = host, .n = sizeof(host), .memory = memory,
		.owner = &owners[1], .stage = leave,
	};

	for (volatile int i = 0; i < 50; i++) {
		c.to = i % 2;
		if (!setjmp(left))
			gdr_engine_copy(engine, &c);
		gdr_engine_forget(engine, &owners[1]);
	}
	tap_ok(&tap, reads(0, host, sizeof(host), 1), "after copies that were left");
}

static int stages;

static void leave_second(const void *arg, void *host, void *chunk, size_t n)
{
	if (stages++)
		leave(arg, host, chunk, n);
	memcpy(chunk, host, n);
}

/* What a copy had begun when it was left lands as it was, before the next one begins. */
static void lands(void)
{
	static uint8_t old[1u << 20], new[4096];
	struct gdr_engine_copy c = {
		.at = (uintptr_t)device, .host = old, .n = sizeof(old), .to = true, .memory = memory,
		.owner = &owners[2], .stage = leave_second,
	};
	size_t far = sizeof(device) - sizeof(new);

	memset(old, 0x11, sizeof(old));
	memset(new, 0x22, sizeof(new));
	memset(device, 0, sizeof(device));
	stages = 0;
	stop(true);
	if (!setjmp(left))
		gdr_engine_copy(engine, &c);
	gdr_engine_forget(engine, &owners[2]);
	tap_ok(&tap, !copy(true, far, new, sizeof(new), &owners[2]), "a copy after one that was left");
	stop(false);
	tap_ok(&tap, device[0] == 0x11 && device[4096] == 0x11 && !memcmp(device + far, new, sizeof(new)),
	       "what was begun of the first one landed");
}

static void other_memory(void)
{
	static uint8_t host[3u << 20];
	int before = atomic_load(&ids_asked), synced;

	tap_is(&tap, copy(false, 0, host, sizeof(host), &owners[0]), 0, "a copy of many chunks");
	tap_is(&tap, atomic_load(&ids_asked) - before, 2, "asks for the memory of the first and the last byte, once:");
	synced = atomic_load(&syncs);
	atomic_fetch_add(&buffer_id, 1);
	tap_is(&tap, copy(true, 0, pinned, 4096, &owners[0]), GDR_ENGINE_OTHER_MEMORY,
	       "a copy to memory that is another one");
	atomic_fetch_sub(&buffer_id, 1);
	tap_is(&tap, copy(true, 0, pinned, 4096, &owners[0]), GDR_ENGINE_OTHER_MEMORY,
	       "memory does not come back: a copy");
	tap_is(&tap, atomic_load(&syncs) - synced, 0, "nothing was begun, and nothing is waited for:");
	start();
}

static void *call(void *arg)
{
	int owner = (int)(intptr_t)arg;
	uint8_t *host = pinned + owner * (sizeof(pinned) / CALLERS);
	intptr_t early = 0;

	for (int i = 0; i < ROUNDS; i++)
		early += !reads(i * 8, host, 4096 + i, owner);
	return (void *)early;
}

static void *copy_often(void *arg)
{
	int owner = (int)(intptr_t)arg;
	uint8_t *host = malloc(sizeof(device) + 1);
	intptr_t bad = 0;

	for (size_t i = 0; i < COPIES; i++) {
		size_t at = i * 4097, n = sizeof(device) - at - i * i * 2003;
		int rc;

		host[n] = 0x5a;
		while ((rc = copy(false, at, host, n, &owners[owner])) == GDR_ENGINE_BUSY)
			sched_yield();
		bad += rc || memcmp(host, device + at, n) || host[n] != 0x5a;
	}
	free(host);
	return (void *)bad;
}

static void by_many(int threads, void *(*run)(void *), const char *what)
{
	pthread_t t[PINNED_SLOTS + MORE];
	intptr_t sum = 0;
	void *n;

	for (int i = 0; i < threads; i++)
		if (pthread_create(&t[i], NULL, run, (void *)(intptr_t)i))
			abort();
	for (int i = 0; i < threads; i++) {
		pthread_join(t[i], &n);
		sum += (intptr_t)n;
	}
	tap_is(&tap, sum, 0, what);
}

static void *one_pinned(void *n)
{
	int rc = copy(false, 0, pinned + 4096 * (intptr_t)n, 4096, &owners[(intptr_t)n]);

	atomic_fetch_add(&refused, rc == GDR_ENGINE_BUSY);
	return (void *)(intptr_t)(rc && rc != GDR_ENGINE_BUSY);
}

static void *let_go(void *unused)
{
	while (atomic_load(&held) + atomic_load(&refused) < PINNED_SLOTS + MORE)
		usleep(100);
	atomic_store(&is_held, false);
	return unused;
}

/* Each slot for page-locked memory is taken once; who finds none is told so. */
static void all_slots(void)
{
	pthread_t thread;

	atomic_store(&is_held, true);
	if (pthread_create(&thread, NULL, let_go, NULL))
		abort();
	by_many(PINNED_SLOTS + MORE, one_pinned, "copies that fail");
	pthread_join(thread, NULL);
	tap_is(&tap, atomic_load(&refused), MORE, "copies that find no slot");
}

/* The driver must not get a stream that a reset has ended: it would end this program. */
static void reset(void)
{
	static uint8_t host[1u << 20];

	atomic_store(&was_reset, true);
	tap_is(&tap, copy(false, 0, host, sizeof(host), &owners[0]), 709, "a copy after a reset");
	tap_is(&tap, copy(true, 0, pinned, 4096, &owners[0]), 709, "and one of page-locked memory");
}

int main(void)
{
	static uint8_t host[sizeof(device)];
	pthread_t thread;

	for (size_t i = 0; i < sizeof(device); i++)
		device[i] = (uint8_t)(i * 7 + i / 251);
	if (pthread_create(&thread, NULL, run_stream, NULL))
		abort();
	start();
	by_one();
	leaves_the_thread();
	without_words();
	by_many(CALLERS, call, "waits of many threads that end too early");
	stream.fast = false;
	by_many(COPIERS, copy_often, "bad reads through staging chunks");
	stream.slow = true;
	tap_ok(&tap, reads(0, host, sizeof(host), 0), "a read from a slow stream");
	stream.slow = false;
	fails();
	is_left();
	lands();
	other_memory();
	all_slots();
	reset();
	return tap_done(&tap);
}
