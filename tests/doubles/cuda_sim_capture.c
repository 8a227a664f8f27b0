// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: stream captures. Test code.
 *
 * A graph has no nodes here: what a captured stream is given is dropped. What is modelled
 * is which call ends whose capture, as an H200 did (580.159, CUDA 13.0, 2026-11-22), each
 * call tried by the capturing thread and by another one. The manual's words are at
 * cuThreadExchangeStreamCaptureMode. Each entry point asks capture_forbids() by enter(),
 * so no call can leave it out.
 */
#include "cuda_sim.h"

#include <stdlib.h>
#include <string.h>

enum { GLOBAL, THREAD_LOCAL, RELAXED };	/* CUstreamCaptureMode */
enum { NONE, ACTIVE, INVALIDATED };	/* CUstreamCaptureStatus */

/* It lasts from the begin to the end, also when it is lost. */
struct capture {
	struct capture *next;
	const struct stream *stream;
	const struct ctx *ctx;
	const int *thread;	/* the mode of the thread that began it: its name */
	int mode;
	bool lost;
};

struct graph {
	struct graph *next;
};

static struct capture *captures;
static struct graph *graphs;
static _Thread_local int thread_mode;

/*
 * Calls that may wait for the GPU, or use the default stream. They end the captures that
 * the thread's mode protects. The first line was measured, the others are of the same
 * kind by the manual.
 */
static const char *const unsafe[] = {
	"cuPointerSetAttribute", "cuStreamSynchronize", "cuStreamQuery", "cuMemAlloc_v2", "cuMemAllocHost_v2", "cuMemHostRegister_v2",
	"cuMemAllocPitch_v2", "cuMemAllocManaged", "cuMemHostAlloc", "cuMemFree_v2", "cuMemFreeHost", "cuMemHostUnregister",
	"cuMemcpy", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemcpyDtoD_v2", "cuMemsetD8_v2", "cuMemsetD32_v2",
	"cuEventQuery", "cuEventSynchronize", "cuModuleLoadData",
};

/* Calls that end each capture of the current context, whatever the thread's mode. */
static const char *const conflicting[] = { "cuCtxSetFlags", "cuCtxSynchronize" };

static bool listed(const char *name, const char *const *list, size_t n)
{
	while (n && strcmp(list[n - 1], name))
		n--;
	return n;
}

#define LISTED(name, list) listed(name, list, sizeof(list) / sizeof(list[0]))

/* Whether this thread's unsafe call is forbidden because of c. */
static bool protects(const struct capture *c)
{
	bool own = c->thread == &thread_mode && c->mode != RELAXED;

	return thread_mode != RELAXED && (own || (thread_mode == GLOBAL && c->mode == GLOBAL));
}

/* CU_OK, or what the call answers because of captures. These are lost then. */
int capture_forbids(const char *name)
{
	bool is_unsafe, is_conflicting;
	int result = CU_OK;

	if (!captures)
		return CU_OK;
	is_unsafe = LISTED(name, unsafe);
	is_conflicting = LISTED(name, conflicting);
	for (struct capture *c = captures; c; c = c->next) {
		if (!(is_unsafe && protects(c)) && !(is_conflicting && c->ctx == current_ctx()))
			continue;
		c->lost = true;
		result = CU_CAPTURE_UNSUPPORTED;
	}
	return result;
}

static struct capture *find(const struct stream *stream)
{
	return LIST_FIND(c, captures, c->stream == stream);
}

/* Whether what the stream is given now is dropped, as a part of a graph. */
bool capture_takes(const struct stream *stream, int *result)
{
	const struct capture *c = find(stream);

	*result = c && c->lost ? CU_CAPTURE_INVALIDATED : CU_OK;
	return c;
}

/* A captured stream cannot be waited for, or asked. Its capture is lost. */
int capture_waits(const struct stream *stream)
{
	struct capture *c = find(stream);

	if (!c)
		return CU_OK;
	c->lost = true;
	return CU_CAPTURE_UNSUPPORTED;
}

/* The stream goes. */
void capture_forget(const struct stream *stream)
{
	struct capture *c = find(stream);

	if (!c)
		return;
	LIST_TAKE(captures, c);
	free(c);
}

static int begin(const struct ctx *ctx, const struct stream *stream, int mode)
{
	struct capture *c;

	if (mode < GLOBAL || mode > RELAXED)
		return CU_INVALID_VALUE;
	if (!stream_known(stream))
		return CU_INVALID_HANDLE;
	if ((uintptr_t)stream <= 2)
		return CU_CAPTURE_UNSUPPORTED;
	if (find(stream))
		return CU_ILLEGAL_STATE;
	c = calloc(1, sizeof(*c));
	if (!c)
		return CU_OUT_OF_MEMORY;
	*c = (struct capture){ .next = captures, .stream = stream, .ctx = ctx, .mode = mode,
			       .thread = &thread_mode };
	captures = c;
	return CU_OK;
}

SIM_CALL_CTX(cuStreamBeginCapture_v2, (struct stream *stream, int mode),
	     begin(current_ctx(), stream, mode))

static int end(const struct stream *stream, struct graph **graph)
{
	struct capture *c = find(stream);
	struct graph *g;
	bool lost;

	if (!graph)
		return CU_INVALID_VALUE;
	*graph = NULL;
	if (!c)
		return stream_known(stream) ? CU_ILLEGAL_STATE : CU_INVALID_HANDLE;
	if (c->thread != &thread_mode && c->mode != RELAXED)
		return CU_CAPTURE_WRONG_THREAD;
	lost = c->lost;
	capture_forget(stream);
	if (lost)
		return CU_CAPTURE_INVALIDATED;
	g = calloc(1, sizeof(*g));
	if (!g)
		return CU_OUT_OF_MEMORY;
	g->next = graphs;
	graphs = *graph = g;
	return CU_OK;
}

SIM_CALL_CTX(cuStreamEndCapture, (struct stream *stream, struct graph **graph), end(stream, graph))

static int capture_status(const struct stream *stream, int *status)
{
	const struct capture *c = find(stream);

	if (status && !stream_known(stream))
		return CU_INVALID_HANDLE;
	return GIVE(status, !c ? NONE : c->lost ? INVALIDATED : ACTIVE);
}

SIM_CALL_CTX(cuStreamIsCapturing, (struct stream *stream, int *status),
	     capture_status(stream, status))

static int graph_destroy(struct graph *graph)
{
	if (!LIST_FIND(g, graphs, g == graph))
		return CU_INVALID_VALUE;
	LIST_TAKE(graphs, graph);
	free(graph);
	return CU_OK;
}

SIM_CALL(cuGraphDestroy, (struct graph *graph), graph_destroy(graph))

/*
 * The thread's mode, and with it which captures its unsafe calls would end: in GLOBAL its
 * own, and those that any thread began in GLOBAL; in THREAD_LOCAL its own; in RELAXED
 * none. Its own that it began in RELAXED never count.
 */
static int exchange(int *mode)
{
	int was = thread_mode;

	if (!mode || *mode < GLOBAL || *mode > RELAXED)
		return CU_INVALID_VALUE;
	thread_mode = *mode;
	*mode = was;
	return CU_OK;
}

SIM_CALL(cuThreadExchangeStreamCaptureMode, (int *mode), exchange(mode))
