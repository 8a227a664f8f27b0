// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "enter.h"

#include <errno.h>
#include <pthread.h>

void gdr_guest_enter(struct gdr_guest *g)
{
	g->error = errno;
	gdr_hold_signals(gdr_open_inside(), &g->held);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &g->cancel);
	gdr_float_enter(&g->floats);
}

void gdr_guest_leave(const struct gdr_guest *g)
{
	gdr_float_leave(&g->floats);
	pthread_setcancelstate(g->cancel, NULL);
	gdr_release_signals(g->held);
	errno = g->error;
}
