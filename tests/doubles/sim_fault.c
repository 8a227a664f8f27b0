// SPDX-License-Identifier: MIT
/* Fault injection. See sim_fault.h. */
#include "sim_fault.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RULES 64

/* fork() waits for the lock, so that a child finds it free. It guards what follows. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool loaded;	/* the variable was read */
static struct rule {
	char name[SIM_FAULT_NAME];	/* empty: the slot is free */
	int result;			/* never 0 in a used slot */
	unsigned long nth;		/* 0: every call */
	unsigned long calls;		/* of name since the rule was made */
} rules[RULES];

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

static void bad_rule(const char *rule)
{
	fprintf(stderr, "CUDA_SIM_FAIL: cannot use rule \"%s\": write name=result or name=result@n, with a name that this double exports\n",
		rule);
	abort();
}

/* The caller holds the lock. */
static void drop_rules(const char *name)
{
	size_t i;

	for (i = 0; i < RULES; i++)
		if (strcmp(rules[i].name, name) == 0)
			rules[i].name[0] = '\0';
}

/* The caller holds the lock. */
static void add_rule(const char *name, int result, unsigned long nth)
{
	struct rule *r = rules;

	while (r < rules + RULES && r->name[0])
		r++;
	if (r == rules + RULES || !name[0] || strlen(name) >= sizeof(r->name))
		bad_rule(name);
	if (!sim_fault_known(name))
		bad_rule(name);
	strcpy(r->name, name);
	r->result = result;
	r->nth = nth;
	r->calls = 0;
}

static void parse_rule(char *text)
{
	char *eq = strchr(text, '='), *end;
	unsigned long nth = 0;
	long result;

	if (!eq)
		bad_rule(text);
	errno = 0;
	result = strtol(eq + 1, &end, 0);
	if (end == eq + 1 || errno || !result || result < INT_MIN || result > INT_MAX)
		bad_rule(text);
	if (*end == '@') {
		char *count = end + 1;

		nth = strtoul(count, &end, 10);
		if (end == count || errno || !nth)
			bad_rule(text);
	}
	if (*end)
		bad_rule(text);
	*eq = '\0';
	add_rule(text, (int)result, nth);
}

/* Read the environment once. The caller holds the lock. */
static void load(void)
{
	const char *env;
	char *text, *rule, *save = NULL;

	if (loaded)
		return;
	loaded = true;
	env = getenv("CUDA_SIM_FAIL");
	if (!env)
		return;
	text = strdup(env);
	if (!text)
		abort();
	for (rule = strtok_r(text, ",", &save); rule; rule = strtok_r(NULL, ",", &save))
		parse_rule(rule);
	free(text);
}

int sim_fault(const char *name)
{
	int result = 0;
	size_t i;

	pthread_mutex_lock(&lock);
	load();
	for (i = 0; i < RULES; i++) {
		struct rule *r = &rules[i];

		if (strcmp(r->name, name) != 0)
			continue;
		r->calls++;
		if (!result && (!r->nth || r->calls == r->nth))
			result = r->result;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

void sim_fault_set(const char *name, int result, int nth)
{
	pthread_mutex_lock(&lock);
	load();
	if (!result)
		drop_rules(name);
	else if (nth < 0)
		bad_rule(name);
	else
		add_rule(name, result, (unsigned long)nth);
	pthread_mutex_unlock(&lock);
}

unsigned long sim_fault_calls(const char *name)
{
	unsigned long calls = 0;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < RULES; i++)
		if (!strcmp(rules[i].name, name))
			calls = rules[i].calls;
	pthread_mutex_unlock(&lock);
	return calls;
}
