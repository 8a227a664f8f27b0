// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: events, and host functions in streams. Test code.
 *
 * Nothing runs by itself here. The first query of a recorded event answers "not ready",
 * as a busy GPU would. After a second query, or after a wait, the event has passed.
 */
#include "cuda_sim.h"

#include <stdlib.h>

int cuStreamQuery(struct stream *stream);

struct event {
	struct event *next;
	bool pending;
};

static struct event *events;

static bool is_made(const struct event *event)
{
	return LIST_FIND(e, events, e == event);
}

/* Flags: 1 blocking waits, 2 no timing, 4 for other processes (not modelled). */
static int event_create(struct event **event, unsigned int flags)
{
	struct event *e = event && flags <= 3 ? calloc(1, sizeof(*e)) : NULL;

	if (!e)
		return CU_INVALID_VALUE;
	e->next = events;
	events = *event = e;
	return CU_OK;
}

SIM_CALL_CTX(cuEventCreate, (struct event **event, unsigned int flags), event_create(event, flags))

static int event_destroy(struct event *event)
{
	if (!is_made(event))
		return CU_INVALID_HANDLE;
	LIST_TAKE(events, event);
	free(event);
	return CU_OK;
}

SIM_CALL_CTX(cuEventDestroy_v2, (struct event *event), event_destroy(event))

static int record(struct event *event, const struct stream *stream)
{
	return is_made(event) ? stream_takes(stream, &event->pending) : CU_INVALID_HANDLE;
}

SIM_CALL_CTX(cuEventRecord, (struct event *event, struct stream *stream), record(event, stream))

/* Its work lands. A query of what was pending answers "not ready". */
static int event_pass(struct event *event, bool query)
{
	bool was_pending;

	if (!is_made(event))
		return CU_INVALID_HANDLE;
	was_pending = event->pending;
	event->pending = false;
	if (was_pending || !query)
		flush();
	return was_pending && query ? CU_NOT_READY : CU_OK;
}

SIM_CALL(cuEventQuery, (struct event *event), event_pass(event, true))

SIM_CALL(cuEventSynchronize, (struct event *event), event_pass(event, false))

static int wait_event(const struct stream *stream, const struct event *event, unsigned int flags)
{
	bool now;

	if (flags)
		return CU_INVALID_VALUE;
	return is_made(event) ? stream_takes(stream, &now) : CU_INVALID_HANDLE;
}

SIM_CALL_CTX(cuStreamWaitEvent, (struct stream *stream, struct event *event, unsigned int flags),
	     wait_event(stream, event, flags))

/* The work before it is done. The function has run when this returns. */
SIM_API int cuLaunchHostFunc(struct stream *stream, void (*fn)(void *), void *arg)
{
	int result = fn ? cuStreamQuery(stream) : CU_INVALID_VALUE;

	if (!result)
		fn(arg);
	return result;
}

SIM_API int cuStreamAddCallback(struct stream *stream, void (*fn)(struct stream *, int, void *), void *arg, unsigned int flags)
{
	int result = fn && !flags ? cuStreamQuery(stream) : CU_INVALID_VALUE;

	if (!result)
		fn(stream, CU_OK, arg);
	return result;
}
