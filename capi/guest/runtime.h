/* SPDX-License-Identifier: MIT */
/*
 * runtime.h - the Go runtime in a process that is not Go's.
 */
#ifndef GDR_RUNTIME_H
#define GDR_RUNTIME_H

#pragma GCC visibility push(hidden)

/*
 * Starts the runtime, once in a process. A child of fork() starts it anew, in the state
 * that it had in the file. Before any Go code runs, it makes the threads and tries for
 * the memory that the runtime will need. Returns 0, or an errno value after it logged a
 * line; then it may be called again. The caller makes sure that only one thread calls it
 * at a time.
 */
int gdr_runtime_start(void);

/* The calling thread forked inside Go, and is the child's now: its goroutine is none of this runtime's. */
void gdr_runtime_leave_parent(void);

#pragma GCC visibility pop

#endif
