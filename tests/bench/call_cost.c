// SPDX-License-Identifier: MIT
/*
 * call_cost.c - what calls of the control plane cost a host: time, threads, memory.
 */
#include "guest/cuda.h"

#define CALLS 20000
#define HOST_THREADS 1000

static void print_rss(const char *what)
{
	printf("%-48s %8ld KiB, %ld threads\n", what, rss_kib(), count_threads());
}

static gdr_t g;
static struct buffer b;

static void call_version(void)
{
	int major, minor;

	expect_is(gdr_driver_get_version(g, &major, &minor), 0);
}

static void call_info(void)
{
	unsigned char info[64];

	expect_is(gdr_get_info(g, b.mh, info), 0);
}

static void call_pin(void)
{
	gdr_mh_t mh;

	expect_is(gdr_pin_buffer(g, b.dptr, b.size, 0, 0, &mh), 0);
	expect_is(gdr_unpin_buffer(g, mh), 0);
}

static void call_map(void)
{
	void *va;

	expect_is(gdr_unmap(g, b.mh, b.va, b.size), 0);
	expect_is(gdr_map(g, b.mh, &va, b.size), 0);
	b.va = va;
}

/* The best of ten, for the machine may do other work. */
static void time_calls(const char *what, void (*call)(void), int calls)
{
	double best = 1e9;

	for (int i = 0; i < 10; i++) {
		double start = seconds_now(), each;

		for (int k = 0; k < calls / 10; k++)
			call();
		each = (seconds_now() - start) / (calls / 10);
		if (each < best)
			best = each;
	}
	printf("%-48s %8.2f us\n", what, best * 1e6);
}

static void *time_in_thread(void *unused)
{
	time_calls("gdr_driver_get_version, another thread", call_version, CALLS);
	return unused;
}

/* Threads that have called once, and stay. */
static pthread_barrier_t called, left;

static void *call_and_stay(void *unused)
{
	call_version();
	pthread_barrier_wait(&called);
	pthread_barrier_wait(&left);
	return unused;
}

static void many_threads(void)
{
	static pthread_t t[HOST_THREADS];

	expect_is(pthread_barrier_init(&called, NULL, HOST_THREADS + 1), 0);
	expect_is(pthread_barrier_init(&left, NULL, HOST_THREADS + 1), 0);
	for (int i = 0; i < HOST_THREADS; i++)
		start_thread(&t[i], 64 * KIB, call_and_stay, NULL);
	pthread_barrier_wait(&called);
	print_rss("1000 threads that have called once");
	pthread_barrier_wait(&left);
	join_threads(t, HOST_THREADS);
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	print_rss("before gdr_open");
	g = open_with_context();
	print_rss("after gdr_open");
	make_buffer(g, &b, 64 * KIB);
	print_rss("with a buffer");
	time_calls("gdr_driver_get_version", call_version, CALLS);
	run_thread(0, time_in_thread, NULL);
	time_calls("gdr_get_info", call_info, CALLS);
	time_calls("gdr_pin_buffer and gdr_unpin_buffer", call_pin, on_doubles() ? CALLS : 500);
	time_calls("gdr_unmap and gdr_map", call_map, on_doubles() ? CALLS : 500);
	many_threads();
	return 0;
}
