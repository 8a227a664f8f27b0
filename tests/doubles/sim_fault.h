/* SPDX-License-Identifier: MIT */
/*
 * Fault injection for the simulated libcuda.
 * Test code: it never ships.
 *
 * A rule has the name of an entry point and the result that it must fail with. Rules
 * come from CUDA_SIM_FAIL, read once, and from sim_fault_set() while
 * the program runs. The text form is
 *
 *	name=result[@n][,name=result[@n]...]
 *
 * where n counts the calls of that name from 1, from the time the rule was
 * made; without @n every call fails. The result is a decimal or 0x number and
 * may be negative. Text that does not parse ends the process with a message:
 * a test whose fault was misspelt must not pass.
 */
#ifndef SIM_FAULT_H
#define SIM_FAULT_H

#include <stdbool.h>

#pragma GCC visibility push(hidden)

#define SIM_FAULT_NAME 64

/* Whether a rule may have that name. */
bool sim_fault_known(const char *name);

/* Count one call of name. Returns 0, or the result that the call must fail with. */
int sim_fault(const char *name);

/* The calls of name since its rule was made; 0 if it has none. */
unsigned long sim_fault_calls(const char *name);

/* Make a rule. nth 0 is every call. result 0 drops every rule of the name. */
void sim_fault_set(const char *name, int result, int nth);

#pragma GCC visibility pop

#endif
