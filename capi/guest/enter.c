// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "enter.h"

#include <errno.h>
#include <pthread.h>

void gdr_enter(struct gdr_host_thread *t)
{
	t->error = errno;
	gdr_hold_signals(gdr_open_inside(), &t->held);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &t->cancel);
	gdr_float_enter(&t->floats);
}

void gdr_leave(const struct gdr_host_thread *t)
{
	gdr_float_leave(&t->floats);
	pthread_setcancelstate(t->cancel, NULL);
	gdr_release_signals(t->held);
	errno = t->error;
}
