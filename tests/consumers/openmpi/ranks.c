/* SPDX-License-Identifier: MIT */
/*
 * ranks.c - two ranks of MPI exchange messages of GPU memory, one at a time and many at
 * a time. CUDA says whether the bytes are right. Each rank reports to the first.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

#include "../load.h"
#include "tap.h"

enum { ROUNDS = 100, MANY = 16, LARGEST = 1 << 20 };

static struct cuda_dl cu;
static cu_ptr out, in;
static unsigned char bytes[LARGEST], got[LARGEST];

static void fill(size_t size, int rank, int round)
{
	size_t i;

	for (i = 0; i < size; i++)
		bytes[i] = (unsigned char)(i * 5 + (size_t)rank * 101 + (size_t)round);
}

static void *gpu(cu_ptr p)
{
	return (void *)(uintptr_t)p;
}

/* Both ranks send and receive; 1 if what came is what the other one sent. */
static int exchange(size_t size, int rank, int round)
{
	fill(size, rank, round);
	if (cu.to_gpu(out, bytes, size) || cu.set8(in, 0, size))
		return 0;
	if (MPI_Sendrecv(gpu(out), (int)size, MPI_BYTE, !rank, round, gpu(in), (int)size, MPI_BYTE,
			 !rank, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE))
		return 0;
	fill(size, !rank, round);
	return !cu.from_gpu(got, in, size) && !memcmp(got, bytes, size);
}

/* Parts of one buffer, all under way at once. */
static int exchange_many(int rank, int round)
{
	enum { PART = LARGEST / MANY };
	MPI_Request requests[2 * MANY];
	int i;

	fill(LARGEST, rank, round);
	if (cu.to_gpu(out, bytes, LARGEST) || cu.set8(in, 0, LARGEST))
		return 0;
	for (i = 0; i < MANY; i++) {
		size_t at = (size_t)i * PART;

		if (MPI_Irecv(gpu(in + at), PART, MPI_BYTE, !rank, i, MPI_COMM_WORLD,
			      &requests[i]) ||
		    MPI_Isend(gpu(out + at), PART, MPI_BYTE, !rank, i, MPI_COMM_WORLD,
			      &requests[MANY + i]))
			return 0;
	}
	if (MPI_Waitall(2 * MANY, requests, MPI_STATUSES_IGNORE))
		return 0;
	fill(LARGEST, !rank, round);
	return !cu.from_gpu(got, in, LARGEST) && !memcmp(got, bytes, LARGEST);
}

int main(int argc, char **argv)
{
	static const size_t sizes[] = { 1, 8, 1000, 65536, LARGEST };
	const int kinds = sizeof(sizes) / sizeof(sizes[0]);
	int right[sizeof(sizes) / sizeof(sizes[0]) + 1] = { 0 }, sum[kinds + 1];
	int rank, ranks, kind, round;
	struct tap tap = { 0 };

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	consumer_cuda(&cu);
	if (ranks != 2 || cu.mem_alloc(&out, LARGEST) || cu.mem_alloc(&in, LARGEST)) {
		printf("# two ranks, and memory for each\n");
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	for (kind = 0; kind < kinds; kind++)
		for (round = 0; round < ROUNDS; round++)
			right[kind] += exchange(sizes[kind], rank, round);
	for (round = 0; round < ROUNDS / 10; round++)
		right[kinds] += exchange_many(rank, round);
	MPI_Reduce(right, sum, kinds + 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
	if (!rank) {
		for (kind = 0; kind < kinds; kind++)
			tap_ok(&tap, sum[kind] == 2 * ROUNDS, "messages of %zu bytes: %d of %d right",
			       sizes[kind], sum[kind], 2 * ROUNDS);
		tap_ok(&tap, sum[kinds] == 2 * (ROUNDS / 10), "many at a time: %d of %d right",
		       sum[kinds], 2 * (ROUNDS / 10));
		tap_done(&tap);
	}
	round = cu.mem_free(out) || cu.mem_free(in) || tap.failed;
	MPI_Finalize();
	return round;
}
