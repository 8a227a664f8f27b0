/* SPDX-License-Identifier: MIT */
/*
 * runtime.h - the Go runtime in a process that is not Go's.
 */
#ifndef GDR_RUNTIME_H
#define GDR_RUNTIME_H

#pragma GCC visibility push(hidden)

/*
 * Starts the runtime, once in a process; a child of fork() starts it anew, in the
 * state that it had in the file. Before anything of Go's runs, it makes the threads
 * and tries for the memory that the runtime will need. Returns 0, or an errno value
 * with a line in the log; it may then be called again. The caller sees to it that
 * one thread calls it at a time.
 */
int gdr_runtime_start(void);

#pragma GCC visibility pop

#endif
