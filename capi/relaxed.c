// SPDX-License-Identifier: MIT
#include "relaxed.h"

#include "driver.h"
#include "guest.h"

#define CAPTURE_MODE_RELAXED 2

bool gdr_cuda_find(struct gdr_cuda *cuda)
{
	struct gdr_cuda_calls *c = &cuda->unscoped;

	gdr_driver_find("cuStreamWriteValue32_v2", &c->write);
	gdr_driver_find("cuThreadExchangeStreamCaptureMode", &c->exchange_mode);
	return gdr_driver_find("cuPointerGetAttributes", &c->attributes) &&
	       gdr_driver_find("cuDeviceGet", &c->device_get) &&
	       gdr_driver_find("cuDevicePrimaryCtxRetain", &c->primary_retain) &&
	       gdr_driver_find("cuDevicePrimaryCtxRelease_v2", &c->primary_release) &&
	       gdr_driver_find("cuCtxPushCurrent_v2", &c->push) &&
	       gdr_driver_find("cuCtxPopCurrent_v2", &c->pop) &&
	       gdr_driver_find("cuStreamCreate", &c->stream_create) &&
	       gdr_driver_find("cuStreamDestroy_v2", &c->stream_destroy) &&
	       gdr_driver_find("cuStreamSynchronize", &c->stream_wait) &&
	       gdr_driver_find("cuMemcpyHtoDAsync_v2", &c->to) &&
	       gdr_driver_find("cuMemcpyDtoHAsync_v2", &c->from) &&
	       gdr_driver_find("cuMemHostRegister_v2", &c->lock) &&
	       gdr_driver_find("cuMemHostUnregister", &c->unlock) &&
	       gdr_driver_find("cuMemHostGetDevicePointer_v2", &c->gpu_address);
}

static int run_in(const struct gdr_cuda_calls *c, void *ctx, gdr_cuda_work *work, void *arg)
{
	void *popped;
	int rc;

	if (!ctx)
		return work(c, arg);
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
