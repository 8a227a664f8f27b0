// SPDX-License-Identifier: MIT
/* Simulated libcuda: contexts and streams. Test code. */
#include "cuda_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define STACK_DEPTH 64

/* Contexts stay on the list for ever, so a stale one is always recognised. */
static struct ctx *contexts;
static struct ctx *primaries[SIM_MAX_DEVICES];
static _Atomic unsigned long made;	/* contexts, each beginning of a primary one */

static _Thread_local struct ctx *stack[STACK_DEPTH];
static _Thread_local int depth;

struct stream {
	struct stream *next;
	struct ctx *ctx;
	bool ended;	/* with its context: it stays on the list, to be recognised */
};

static struct stream *streams;

struct ctx *current_ctx(void)
{
	return depth ? stack[depth - 1] : NULL;
}

bool ctx_alive(const struct ctx *ctx)
{
	return ctx->refs && !ctx->reset;
}

static bool ctx_known(const struct ctx *ctx)
{
	return LIST_FIND(c, contexts, c == ctx);
}

static struct ctx *ctx_new(int device, bool primary, unsigned int flags)
{
	struct ctx *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	*c = (struct ctx){ .next = contexts, .id = next_id(), .device = device, .primary = primary,
			   .flags = flags };
	contexts = c;
	return c;
}

/* Frees what was made in a context. */
static void ctx_end(struct ctx *c)
{
	kernel_forget(c);
	flush();
	alloc_forget(c);
	host_forget(c);
	peers_forget(c);
	for (struct stream *s = streams; s; s = s->next)
		if (s->ctx == c && !s->ended) {
			capture_forget(s);
			s->ended = true;
		}
}

/* The driver opens device files for a context. */
static bool has_descriptor(void)
{
	int fd = eventfd(0, EFD_CLOEXEC);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static int primary_retain(struct ctx **ctx, int device)
{
	int result = ctx ? check_device(device) : CU_INVALID_VALUE;
	struct ctx *c;

	if (result)
		return result;
	c = primaries[device] = primaries[device] ?: ctx_new(device, true, 0);
	if (!c)
		return CU_OUT_OF_MEMORY;
	if (!ctx_alive(c)) {
		if (!has_descriptor())
			return CU_OPERATING_SYSTEM;
		c->id = next_id();
		made++;
	}
	c->refs++;
	c->reset = c->lost = false;
	*ctx = c;
	return CU_OK;
}

SIM_CALL(cuDevicePrimaryCtxRetain, (struct ctx **ctx, int device), primary_retain(ctx, device))

/* The flags end with it (580.159.04). */
static void primary_end(struct ctx *c)
{
	ctx_end(c);
	c->flags = 0;
}

static int primary_release(int device)
{
	int result = check_device(device);
	struct ctx *c;

	if (result)
		return result;
	c = primaries[device];
	if (!c || !c->refs)
		return CU_INVALID_CONTEXT;
	if (c->refs == 1)
		primary_end(c);
	c->refs--;
	return CU_OK;
}

SIM_CALL(cuDevicePrimaryCtxRelease_v2, (int device), primary_release(device))

/*
 * Ends the context. Who has retained it releases it all the same, and the next retain counts on: a
 * late release takes no other reference (580.159.04, H100).
 */
static int primary_reset(int device)
{
	int result = check_device(device);

	if (!result && primaries[device] && ctx_alive(primaries[device])) {
		primary_end(primaries[device]);
		primaries[device]->reset = true;
	}
	return result;
}

SIM_CALL(cuDevicePrimaryCtxReset_v2, (int device), primary_reset(device))

static int primary_state(int device, unsigned int *flags, int *active)
{
	int result = flags && active ? check_device(device) : CU_INVALID_VALUE;
	const struct ctx *c = result ? NULL : primaries[device];

	if (result)
		return result;
	*flags = c ? c->flags : 0;
	*active = c && ctx_alive(c);
	return CU_OK;
}

SIM_CALL(cuDevicePrimaryCtxGetState, (int device, unsigned int *flags, int *active), primary_state(device, flags, active))

/* Contexts that were made, by anybody. */
SIM_API unsigned long cuda_sim_contexts(void)
{
	return made;
}

SIM_CALL(cuCtxGetCurrent, (struct ctx **ctx), GIVE(ctx, current_ctx()))

struct ctx no_ctx;

static int ctx_push(struct ctx *ctx)
{
	if (ctx == &no_ctx)
		fault_in_driver("cuCtxPushCurrent");
	if (!ctx_known(ctx))
		return CU_INVALID_CONTEXT;
	if (!ctx_alive(ctx))
		return CU_CONTEXT_DESTROYED;
	if (depth == STACK_DEPTH)
		return CU_OUT_OF_MEMORY;
	stack[depth++] = ctx;
	return CU_OK;
}

SIM_CALL(cuCtxPushCurrent_v2, (struct ctx *ctx), ctx_push(ctx))

static int ctx_pop(struct ctx **ctx)
{
	if (!depth)
		return CU_INVALID_CONTEXT;
	depth--;
	if (ctx)
		*ctx = stack[depth];
	return CU_OK;
}

SIM_CALL(cuCtxPopCurrent_v2, (struct ctx **ctx), ctx_pop(ctx))

/*
 * Replaces the top of the stack. NULL pops it. The real driver takes a context that
 * cuCtxDestroy has ended, too; the next call in it faults.
 */
static int ctx_set(struct ctx *ctx)
{
	if (ctx && !ctx_known(ctx))
		return CU_INVALID_CONTEXT;
	if (ctx && ctx->primary && !ctx_alive(ctx))
		return CU_CONTEXT_DESTROYED;
	if (depth)
		depth--;
	if (ctx && depth == STACK_DEPTH)
		return CU_OUT_OF_MEMORY;
	if (ctx)
		stack[depth++] = ctx;
	return CU_OK;
}

SIM_CALL(cuCtxSetCurrent, (struct ctx *ctx), ctx_set(ctx))

static int ctx_create(struct ctx **ctx, unsigned int flags, int device)
{
	int result = ctx && flags <= 0xff ? check_device(device) : CU_INVALID_VALUE;
	struct ctx *c;

	if (result)
		return result;
	c = ctx_new(device, false, flags);
	if (!c)
		return CU_OUT_OF_MEMORY;
	c->refs = 1;
	made++;
	result = ctx_push(c);
	if (!result)
		*ctx = c;
	return result;
}

SIM_CALL(cuCtxCreate_v2, (struct ctx **ctx, unsigned int flags, int device),
	 ctx_create(ctx, flags, device))

static int ctx_destroy(struct ctx *ctx)
{
	if (!ctx)
		return CU_INVALID_VALUE;
	if (!ctx_known(ctx) || ctx->primary)
		return CU_INVALID_CONTEXT;
	if (!ctx->refs)
		return CU_CONTEXT_DESTROYED;
	ctx_end(ctx);
	ctx->refs = 0;
	if (current_ctx() == ctx)
		depth--;
	return CU_OK;
}

SIM_CALL(cuCtxDestroy_v2, (struct ctx *ctx), ctx_destroy(ctx))
/* The old name, for a context without another user. */
SIM_CALL(cuCtxDetach, (struct ctx *ctx), ctx_destroy(ctx))

SIM_CALL_CTX(cuCtxGetDevice, (int *device), GIVE(device, current_ctx()->device))

static int ctx_id(struct ctx *ctx, uint64_t *id)
{
	ctx = ctx ? ctx : current_ctx();
	if (!ctx || !ctx_known(ctx))
		return CU_INVALID_CONTEXT;
	if (!ctx_alive(ctx))
		return CU_CONTEXT_DESTROYED;
	*id = ctx->id;
	return CU_OK;
}

/* Without a context: that of the thread. It is the one call that knows a destroyed context. */
SIM_CALL(cuCtxGetId, (struct ctx *ctx, uint64_t *id), id ? ctx_id(ctx, id) : CU_INVALID_VALUE)

SIM_CALL_CTX(cuCtxGetFlags, (unsigned int *flags), GIVE(flags, current_ctx()->flags))

/* Scheduling (bits 0 to 2) and the two flags that a context may change. */
static int set_flags(struct ctx *ctx, unsigned int flags)
{
	if (flags & ~(0x7u | 0x10 | CTX_SYNC_MEMOPS))
		return CU_INVALID_VALUE;
	flush();
	ctx->flags = flags;
	return CU_OK;
}

SIM_CALL_CTX(cuCtxSetFlags, (unsigned int flags), set_flags(current_ctx(), flags))

static int synchronize(const struct ctx *ctx)
{
	kernel_wait();
	flush();
	return ctx->lost ? CU_LAUNCH_FAILED : CU_OK;
}

SIM_CALL_CTX(cuCtxSynchronize, (void), synchronize(current_ctx()))

/* A driver that gets an ended one reads freed memory. */
static bool is_made(const struct stream *stream)
{
	const struct stream *s = LIST_FIND(s, streams, s == stream);

	if (s && s->ended) {
		fprintf(stderr, "simulated libcuda: a stream of a context that was reset\n");
		abort();
	}
	return s;
}

/* 0, 1 and 2 are the default streams. */
bool stream_known(const struct stream *stream)
{
	return (uintptr_t)stream <= 2 || is_made(stream);
}

/*
 * Whether a stream takes work. *now: it does the work at once; a captured stream makes it
 * a part of a graph.
 */
int stream_takes(const struct stream *stream, bool *now)
{
	int result;

	if (!stream_known(stream))
		return CU_INVALID_HANDLE;
	*now = !capture_takes(stream, &result);
	return result;
}

static int stream_create(struct ctx *ctx, struct stream **stream, unsigned int flags)
{
	struct stream *s;

	if (!stream || flags > 1)
		return CU_INVALID_VALUE;
	s = calloc(1, sizeof(*s));
	if (!s)
		return CU_OUT_OF_MEMORY;
	s->ctx = ctx;
	s->next = streams;
	streams = s;
	*stream = s;
	return CU_OK;
}

SIM_CALL_CTX(cuStreamCreate, (struct stream **stream, unsigned int flags),
	     stream_create(current_ctx(), stream, flags))

static int stream_destroy(struct stream *stream)
{
	if (!is_made(stream))
		return CU_INVALID_HANDLE;
	capture_forget(stream);
	LIST_TAKE(streams, stream);
	free(stream);
	return CU_OK;
}

SIM_CALL_CTX(cuStreamDestroy_v2, (struct stream *stream), stream_destroy(stream))

static int stream_wait(const struct stream *stream)
{
	int result = stream_known(stream) ? capture_waits(stream) : CU_INVALID_HANDLE;

	if (!result)
		flush();
	return result ? result : current_ctx()->lost ? CU_LAUNCH_FAILED : CU_OK;
}

SIM_CALL_CTX(cuStreamSynchronize, (struct stream *stream), stream_wait(stream))

SIM_CALL_CTX(cuStreamQuery, (struct stream *stream), stream_wait(stream))
