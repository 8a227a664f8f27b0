// SPDX-License-Identifier: (GPL-2.0 OR MIT)
/*
 * nvidia_sim_dmabuf.c - the dma-bufs of the simulated NVIDIA driver. TEST DOUBLE.
 *
 * They are as nv-dmabuf.c makes them: a list has bus addresses and no struct page, an entry
 * is no longer than the importer's segments, and a dynamic importer must allow
 * peer-to-peer, or it cannot attach (nv_dma_buf_attach). There is no vmap; mmap answers 524
 * (nv_dma_buf_mmap). A dma-buf keeps its memory, and the module, until its last user is
 * gone.
 */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "nvidia_sim.h"

#define SIM_ENOTSUPP 524	/* the kernel's own, which NVIDIA's driver gives */

/* A part of a memory, to which it has a reference. */
struct sim_dmabuf {
	struct sim_mem *mem;
	u64 offset;
	u64 size;
};

/* How many bytes from there on follow each other on the bus, as far as an entry goes. */
static u64 sim_run(const struct sim_dmabuf *d, u64 at, u64 longest)
{
	u64 phys = sim_mem_phys(d->mem, d->offset + at);
	u64 n = SIM_PAGE_SIZE - (phys & (SIM_PAGE_SIZE - 1));

	while (at + n < d->size && n < longest &&
	       sim_mem_phys(d->mem, d->offset + at + n) == phys + n)
		n += SIM_PAGE_SIZE;
	return min3(n, longest, d->size - at);
}

static void sim_dmabuf_unmap(struct dma_buf_attachment *attachment,
			     struct sg_table *sgt, enum dma_data_direction dir)
{
	struct scatterlist *sg;
	int i;

	for_each_sgtable_dma_sg(sgt, sg, i)
		dma_unmap_resource(attachment->dev, sg_dma_address(sg),
				   sg_dma_len(sg), dir, 0);
	sg_free_table(sgt);
	kfree(sgt);
}

static struct sg_table *sim_dmabuf_map(struct dma_buf_attachment *attachment,
				       enum dma_data_direction dir)
{
	const struct sim_dmabuf *d = attachment->dmabuf->priv;
	u64 longest = dma_get_max_seg_size(attachment->dev) & PAGE_MASK;
	unsigned int entries = 0;
	struct scatterlist *sg;
	struct sg_table *sgt;
	dma_addr_t bus;
	u64 at, n;

	if (!longest)
		return ERR_PTR(-ENOMEM);
	for (at = 0; at < d->size; at += sim_run(d, at, longest))
		entries++;
	sgt = kzalloc(sizeof(*sgt), GFP_KERNEL);
	if (!sgt)
		return ERR_PTR(-ENOMEM);
	if (sg_alloc_table(sgt, entries, GFP_KERNEL)) {
		kfree(sgt);
		return ERR_PTR(-ENOMEM);
	}
	sgt->nents = 0;		/* those that are mapped */
	for (at = 0, sg = sgt->sgl; at < d->size; at += n, sg = sg_next(sg)) {
		n = sim_run(d, at, longest);
		bus = dma_map_resource(attachment->dev,
				       sim_mem_phys(d->mem, d->offset + at),
				       n, dir, 0);
		if (dma_mapping_error(attachment->dev, bus)) {
			sim_dmabuf_unmap(attachment, sgt, dir);
			return ERR_PTR(-ENOMEM);
		}
		sg_set_page(sg, NULL, n, 0);
		sg_dma_address(sg) = bus;
		sg_dma_len(sg) = n;
		sgt->nents++;
	}
	return sgt;
}

static int sim_dmabuf_attach(struct dma_buf *buf,
			     struct dma_buf_attachment *attachment)
{
	return attachment->importer_ops && !attachment->peer2peer ?
	       -SIM_ENOTSUPP : 0;
}

static int sim_dmabuf_mmap(struct dma_buf *buf, struct vm_area_struct *vma)
{
	return -SIM_ENOTSUPP;
}

static void sim_dmabuf_release(struct dma_buf *buf)
{
	struct sim_dmabuf *d = buf->priv;

	sim_mem_put(d->mem);
	kfree(d);
}

static const struct dma_buf_ops sim_dmabuf_ops = {
	.attach = sim_dmabuf_attach,
	.map_dma_buf = sim_dmabuf_map,
	.unmap_dma_buf = sim_dmabuf_unmap,
	.mmap = sim_dmabuf_mmap,
	.release = sim_dmabuf_release,
};

/* The descriptor of a dma-buf of that part, or an errno. The caller's reference goes with it. */
int sim_dmabuf_fd(struct sim_mem *mem, u64 offset, u64 size)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct sim_dmabuf *d = kzalloc(sizeof(*d), GFP_KERNEL);
	struct dma_buf *buf;
	int fd;

	if (!d) {
		sim_mem_put(mem);
		return -ENOMEM;
	}
	*d = (struct sim_dmabuf) { .mem = mem, .offset = offset, .size = size };
	info.ops = &sim_dmabuf_ops;
	info.size = size;
	info.flags = O_RDWR;
	info.priv = d;
	buf = dma_buf_export(&info);
	if (IS_ERR(buf)) {
		sim_mem_put(mem);
		kfree(d);
		return PTR_ERR(buf);
	}
	fd = dma_buf_fd(buf, O_CLOEXEC);
	if (fd < 0)
		dma_buf_put(buf);
	return fd;
}

/* The macro for this wants a name before 6.13, and a string from then on. */
MODULE_INFO(import_ns, "DMA_BUF");
