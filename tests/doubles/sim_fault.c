// SPDX-License-Identifier: MIT
/* Fault injection shared by the test doubles. See sim_fault.h. */
#include "sim_fault.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A double has at most one sim_faults. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

/* Not at the first call: a fork in the middle of that would leave the lock locked in the child. */
static __attribute__((constructor)) void at_load(void)
{
	if (pthread_atfork(before_fork, after_fork, after_fork))
		abort();
}

static void bad_rule(const struct sim_faults *f, const char *rule)
{
	fprintf(stderr, "%s: cannot use rule \"%s\": write name=result or name=result@n, with a name that this double exports\n",
		f->env, rule);
	abort();
}

/* The caller holds the lock. */
static void drop_rules(struct sim_faults *f, const char *name)
{
	size_t i;

	for (i = 0; i < SIM_FAULT_RULES; i++)
		if (strcmp(f->rules[i].name, name) == 0)
			f->rules[i].name[0] = '\0';
}

/* The caller holds the lock. */
static void add_rule(struct sim_faults *f, const char *name, int result, unsigned long nth)
{
	struct sim_fault_rule *r = f->rules;

	while (r < f->rules + SIM_FAULT_RULES && r->name[0])
		r++;
	if (r == f->rules + SIM_FAULT_RULES || !name[0] || strlen(name) >= sizeof(r->name))
		bad_rule(f, name);
	if (f->known && !f->known(name))
		bad_rule(f, name);
	strcpy(r->name, name);
	r->result = result;
	r->nth = nth;
	r->calls = 0;
}

static void parse_rule(struct sim_faults *f, char *text)
{
	char *eq = strchr(text, '='), *end;
	unsigned long nth = 0;
	long result;

	if (!eq)
		bad_rule(f, text);
	errno = 0;
	result = strtol(eq + 1, &end, 0);
	if (end == eq + 1 || errno || !result || result < INT_MIN || result > INT_MAX)
		bad_rule(f, text);
	if (*end == '@') {
		char *count = end + 1;

		nth = strtoul(count, &end, 10);
		if (end == count || errno || !nth)
			bad_rule(f, text);
	}
	if (*end)
		bad_rule(f, text);
	*eq = '\0';
	add_rule(f, text, (int)result, nth);
}

/* Read the environment once. The caller holds the lock. */
static void load(struct sim_faults *f)
{
	const char *env;
	char *text, *rule, *save = NULL;

	if (f->loaded)
		return;
	f->loaded = 1;
	env = getenv(f->env);
	if (!env)
		return;
	text = strdup(env);
	if (!text)
		abort();
	for (rule = strtok_r(text, ",", &save); rule; rule = strtok_r(NULL, ",", &save))
		parse_rule(f, rule);
	free(text);
}

int sim_fault(struct sim_faults *f, const char *name)
{
	int result = 0;
	size_t i;

	pthread_mutex_lock(&lock);
	load(f);
	for (i = 0; i < SIM_FAULT_RULES; i++) {
		struct sim_fault_rule *r = &f->rules[i];

		if (strcmp(r->name, name) != 0)
			continue;
		r->calls++;
		if (!result && (!r->nth || r->calls == r->nth))
			result = r->result;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

void sim_fault_set(struct sim_faults *f, const char *name, int result, int nth)
{
	pthread_mutex_lock(&lock);
	load(f);
	if (!result)
		drop_rules(f, name);
	else if (nth < 0)
		bad_rule(f, name);
	else
		add_rule(f, name, result, (unsigned long)nth);
	pthread_mutex_unlock(&lock);
}

unsigned long sim_fault_calls(struct sim_faults *f, const char *name)
{
	unsigned long calls = 0;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < SIM_FAULT_RULES; i++)
		if (!strcmp(f->rules[i].name, name))
			calls = f->rules[i].calls;
	pthread_mutex_unlock(&lock);
	return calls;
}
