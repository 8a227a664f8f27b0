// SPDX-License-Identifier: MIT
#include "relaxed.h"

#include "../host/guest.h"

#define CAPTURE_MODE_RELAXED 2

static int run_in(const struct gdr_cuda_calls *c, void *ctx, gdr_cuda_work *work, void *arg)
{
	void *popped;
	int rc;

	rc = c->push(ctx);
	if (rc)
		return rc;
	rc = work(c, arg);
	c->pop(&popped);
	return rc;
}

static int run_relaxed(const struct gdr_cuda_calls *c, void *ctx, gdr_cuda_work *work, void *arg)
{
	int mode = CAPTURE_MODE_RELAXED, rc;

	if (!c->exchange_mode)
		return run_in(c, ctx, work, arg);
	rc = c->exchange_mode(&mode);
	if (rc)
		return rc;
	rc = run_in(c, ctx, work, arg);
	c->exchange_mode(&mode);
	return rc;
}

int gdr_cuda_run(const struct gdr_cuda *cuda, void *ctx, gdr_cuda_work *work, void *arg)
{
	struct gdr_guest guest;
	int rc;

	gdr_guest_enter(&guest);
	rc = run_relaxed(&cuda->unscoped, ctx, work, arg);
	gdr_guest_leave(&guest);
	return rc;
}
