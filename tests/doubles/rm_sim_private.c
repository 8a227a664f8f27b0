// SPDX-License-Identifier: MIT
/* Simulated driver: the requests that the real one does not have. Test code. */
#include "rm_sim.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

int rm_sim_info(const struct rm_caller *c, void *arg)
{
	struct rm_sim_info *a = arg;
	const struct rm_client *client = own_client(c, a->client);
	const struct rm_object *o = client ? object_find(client, a->object) : NULL;

	a->status = client ? RM_NOT_FOUND : RM_INVALID_CLIENT;
	if (!o || !o->memory)
		return 0;
	a->size = o->memory->size;
	a->id = o->memory->id;
	a->gpu_id = gpu_id(o->gpu);
	a->status = RM_OK;
	return 0;
}

/* Counts the objects of all clients. */
static void count(struct rm_sim_stats *s)
{
	const struct rm_client *client;
	const struct rm_mapping *m;
	const struct rm_object *o;
	const struct rm_file *f;

	for (client = client_first(); client; client = client->next) {
		s->clients++;
		for (o = client->objects; o; o = o->next) {
			s->objects++;
			for (m = o->mappings; m; m = m->next)
				s->mappings++;
		}
	}
	for (f = file_first(); f; f = f->next)
		s->files++;
}

int rm_sim_stats(const struct rm_caller *c, void *arg)
{
	struct rm_sim_stats *s = arg;
	int gpu = gpu_by_id(s->gpu_id);

	(void)c;
	*s = (struct rm_sim_stats){ .gpu_id = s->gpu_id };
	if (gpu < 0) {
		s->status = RM_INVALID_ARGUMENT;
		return 0;
	}
	s->total = gpu_memory();
	s->used = gpus[gpu].used;
	s->bar_total = config.bar;
	s->bar_used = gpus[gpu].bar_used;
	count(s);
	return 0;
}

static int give_pages(const struct rm_caller *c, const struct rm_memory *m, uint64_t offset,
		      struct rm_sim_mmap *a)
{
	a->offset = offset;
	a->out_fd = caller_give(c, m->fd, true);
	if (a->out_fd == -EMFILE)
		a->out_fd = caller_replace(c, m->fd);
	return a->out_fd < 0 ? -a->out_fd : 0;
}

/* Without allow_mmap the length is 0. The real driver gives 524 then. */
static int mmap_dmabuf(const struct rm_caller *c, struct rm_sim_mmap *a)
{
	const struct rm_file *f = c->file;

	if (!f->length)
		return ENODEV;
	if (a->offset % RM_PAGE || a->length > f->length || a->offset > f->length - a->length)
		return EINVAL;
	return give_pages(c, f->memory, f->offset + a->offset, a);
}

/* Answers what the simulated libcuda's mmap maps. */
int rm_sim_mmap(const struct rm_caller *c, void *arg)
{
	struct rm_sim_mmap *a = arg;
	const struct rm_client *client = client_find(c->file->mapper);
	struct rm_object *o;
	const struct rm_mapping *m = client ? mapping_find(client, c->file->linear, &o) : NULL;
	uint64_t pages = (a->length + RM_PAGE - 1) / RM_PAGE * RM_PAGE;
	int failure;

	a->address = 0;
	if (c->file->kind == RM_FILE_DMABUF)
		return mmap_dmabuf(c, a);
	/* [nvidia_mmap_helper] */
	if (!m || a->offset)
		return EINVAL;
	failure = fault(c, "MMAP_STATUS");
	if (!failure && c->file->kind == RM_FILE_GPU && fault(c, "LOST"))
		failure = RM_GPU_IS_LOST;
	if (failure && config.driver >= 595)
		return ENODEV;
	if (failure) {
		a->address = (uint32_t)failure;
		return 0;
	}
	if (c->file->kind == RM_FILE_GPU && pages != m->length)
		return ENXIO;
	if (pages > o->memory->size - m->offset)
		return ERANGE;
	return give_pages(c, o->memory, m->offset, a);
}

/* Notes where the program has mapped it. An older mapping at that address is gone. */
int rm_sim_mapped(const struct rm_caller *c, void *arg)
{
	const struct rm_sim_mapped *a = arg;
	const struct rm_client *client = client_find(c->file->mapper);
	struct rm_mapping *m;
	struct rm_object *o;

	for (o = client ? client->objects : NULL; o; o = o->next)
		for (m = o->mappings; m; m = m->next)
			if (m->linear == c->file->linear)
				m->addr = a->addr;
			else if (m->addr == a->addr)
				m->addr = 0;
	return 0;
}

int rm_sim_holds(const struct rm_caller *c, void *arg)
{
	(void)arg;
	return c->file->memory ? 0 : ENODATA;
}

int rm_sim_live(const struct rm_caller *c, void *arg)
{
	struct rm_sim_live *a = arg;
	const struct rm_client *client;
	const struct rm_mapping *m;
	const struct rm_object *o;

	*a = (struct rm_sim_live){ .objects = 0 };
	for (client = client_first(); client; client = client->next) {
		if (client->file->cuda || !caller_is(c, client->process))
			continue;
		for (o = client->objects; o; o = o->next) {
			a->objects += o->memory != NULL;
			for (m = o->mappings; m; m = m->next)
				a->mappings++;
		}
	}
	return 0;
}

int rm_sim_fail(const struct rm_caller *c, void *arg)
{
	const struct rm_sim_fail *a = arg;

	(void)c;
	if (!memchr(a->name, 0, sizeof(a->name)) || !request_known(a->name) || a->nth > INT_MAX)
		return EINVAL;
	sim_fault_set(&rm_faults, a->name, a->result, (int)a->nth);
	return 0;
}

int rm_sim_cuda(const struct rm_caller *c, void *arg)
{
	(void)arg;
	c->file->cuda = true;
	return 0;
}
