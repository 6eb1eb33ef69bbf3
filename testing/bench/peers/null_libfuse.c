/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The tree of `null:` served by libfuse's low-level API with its multi-threaded loop: one directory, one file,
 * constant answers, nothing cached. Usage: null_libfuse -f DIR
 */
#define FUSE_USE_VERSION 34
#include <errno.h>
#include <fuse_lowlevel.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_INODE = 2 };

static struct stat attributes(fuse_ino_t inode)
{
	int directory = inode == FUSE_ROOT_ID;
	struct stat st = {
		.st_ino = inode,
		.st_mode = directory ? S_IFDIR | 0777 : S_IFREG | 0666,
		.st_nlink = 1,
		.st_blksize = 4096,
	};
	return st;
}

static void null_lookup(fuse_req_t request, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry = { .ino = FILE_INODE, .attr = attributes(FILE_INODE) };

	if (parent == FUSE_ROOT_ID && strcmp(name, "file") == 0)
		fuse_reply_entry(request, &entry);
	else
		fuse_reply_err(request, ENOENT);
}

static void null_getattr(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *handle)
{
	struct stat st = attributes(inode);

	(void)handle;
	fuse_reply_attr(request, &st, 0);
}

static void null_open(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *handle)
{
	(void)inode;
	fuse_reply_open(request, handle);
}

static void null_release(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *handle)
{
	(void)inode;
	(void)handle;
	fuse_reply_err(request, 0);
}

static const struct fuse_lowlevel_ops operations = {
	.lookup = null_lookup,
	.getattr = null_getattr,
	.open = null_open,
	.release = null_release,
};

int main(int count, char **words)
{
	struct fuse_args arguments = FUSE_ARGS_INIT(count, words);
	struct fuse_cmdline_opts options;
	struct fuse_loop_config loop = { .clone_fd = 0, .max_idle_threads = 10 };
	struct fuse_session *session;
	int failed;

	if (fuse_parse_cmdline(&arguments, &options) != 0 || options.mountpoint == NULL)
		return 1;
	session = fuse_session_new(&arguments, &operations, sizeof(operations), NULL);
	if (session == NULL || fuse_session_mount(session, options.mountpoint) != 0)
		return 1;
	failed = fuse_session_loop_mt(session, &loop);
	fuse_session_unmount(session);
	fuse_session_destroy(session);
	free(options.mountpoint);
	fuse_opt_free_args(&arguments);
	return failed != 0;
}
