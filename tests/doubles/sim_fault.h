/* SPDX-License-Identifier: MIT */
/*
 * Fault injection for the simulated libcuda.
 * Test code: it never ships.
 *
 * A rule has the name of an entry point and the result that it must fail with. Rules
 * come from an environment variable, read once, and from sim_fault_set() while
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

#define SIM_FAULT_RULES 64
#define SIM_FAULT_NAME 64

struct sim_fault_rule {
	char name[SIM_FAULT_NAME];	/* empty: the slot is free */
	int result;			/* never 0 in a used slot */
	unsigned long nth;		/* 0: every call */
	unsigned long calls;		/* calls of name since the rule was made */
};

/*
 * env is the name of the environment variable. known is NULL, or says which names rules
 * may have. Neither changes. A lock guards the other fields. loaded: the variable was read.
 *
 * A double has at most one such object. fork() waits for the lock, so that a child finds
 * it free.
 */
struct sim_faults {
	const char *env;
	bool (*known)(const char *name);
	int loaded;
	struct sim_fault_rule rules[SIM_FAULT_RULES];
};

#define SIM_FAULTS_INIT(var) { .env = (var) }

/* Count one call of name. Returns 0, or the result that the call must fail with. */
int sim_fault(struct sim_faults *f, const char *name);

/* The calls of name since its rule was made; 0 if it has none. */
unsigned long sim_fault_calls(struct sim_faults *f, const char *name);

/* Make a rule. nth 0 is every call. result 0 drops every rule of the name. */
void sim_fault_set(struct sim_faults *f, const char *name, int result, int nth);

#pragma GCC visibility pop

#endif
