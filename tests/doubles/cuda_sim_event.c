// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: events, and host functions in streams. Test code.
 *
 * Nothing runs by itself here. The first query of a recorded event answers "not ready",
 * as a busy GPU would. After a second query, or after a wait, the event has passed.
 */
#include "cuda_sim.h"

#include <stdlib.h>

struct event {
	struct event *next;
	bool pending;
};

static struct event *events;

static bool event_known(const struct event *event)
{
	const struct event *e;

	for (e = events; e && e != event; e = e->next)
		;
	return e;
}

/* Flags: 1 blocking waits, 2 no timing, 4 for other processes (not modelled). */
SIM_API int cuEventCreate(struct event **event, unsigned int flags)
{
	struct ctx *ctx;
	int result = enter_ctx(__func__, &ctx);
	struct event *e;

	if (result)
		return result;
	e = event && flags <= 3 ? calloc(1, sizeof(*e)) : NULL;
	if (e) {
		e->next = events;
		events = *event = e;
	}
	leave();
	return e ? CU_OK : CU_INVALID_VALUE;
}

SIM_API int cuEventDestroy_v2(struct event *event)
{
	struct event **link = &events;
	struct ctx *ctx;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	while (*link && *link != event)
		link = &(*link)->next;
	if (*link) {
		*link = event->next;
		free(event);
	} else {
		result = CU_INVALID_HANDLE;
	}
	leave();
	return result;
}

SIM_API int cuEventRecord(struct event *event, struct stream *stream)
{
	struct ctx *ctx;
	bool now;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	result = event_known(event) ? stream_takes(stream, &now) : CU_INVALID_HANDLE;
	if (!result)
		event->pending = now;
	leave();
	return result;
}

SIM_API int cuEventQuery(struct event *event)
{
	int result = enter(__func__);

	if (result)
		return result;
	if (!event_known(event)) {
		result = CU_INVALID_HANDLE;
	} else if (event->pending) {
		event->pending = false;
		flush();
		result = CU_NOT_READY;
	}
	leave();
	return result;
}

SIM_API int cuEventSynchronize(struct event *event)
{
	int result = enter(__func__);

	if (result)
		return result;
	if (event_known(event)) {
		event->pending = false;
		flush();
	} else {
		result = CU_INVALID_HANDLE;
	}
	leave();
	return result;
}

SIM_API int cuStreamWaitEvent(struct stream *stream, struct event *event, unsigned int flags)
{
	struct ctx *ctx;
	bool now;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	if (flags)
		result = CU_INVALID_VALUE;
	else if (!event_known(event))
		result = CU_INVALID_HANDLE;
	else
		result = stream_takes(stream, &now);
	leave();
	return result;
}

SIM_API int cuStreamQuery(struct stream *stream)
{
	struct ctx *ctx;
	int result = enter_ctx(__func__, &ctx);

	if (result)
		return result;
	result = stream_known(stream) ? capture_waits(stream) : CU_INVALID_HANDLE;
	if (!result)
		flush();
	leave();
	return result;
}

/* The work before it is done. The function has run when this returns. */
SIM_API int cuLaunchHostFunc(struct stream *stream, void (*fn)(void *), void *arg)
{
	int result = cuStreamQuery(stream);

	if (result)
		return result;
	if (!fn)
		return CU_INVALID_VALUE;
	fn(arg);
	return CU_OK;
}

SIM_API int cuStreamAddCallback(struct stream *stream, void (*fn)(struct stream *, int, void *),
				void *arg, unsigned int flags)
{
	int result = cuStreamQuery(stream);

	if (result)
		return result;
	if (!fn || flags)
		return CU_INVALID_VALUE;
	fn(stream, CU_OK, arg);
	return CU_OK;
}
