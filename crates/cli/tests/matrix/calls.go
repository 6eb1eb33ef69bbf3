// SPDX-License-Identifier: MIT OR Apache-2.0

// What a program without a C library checks: Go calls the system by itself, from many threads. As calls.c: `calls DIR OUTSIDE
// [CHECK...]` prints `ok NAME` or `FAILED NAME why` for each check.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
)

// The directories of a check, in the tree and outside.
var here, there string

func main() {
	if len(os.Args) == 3 && os.Args[1] == "say" {
		fmt.Println(os.Args[2])
		return
	}
	failed := false
	for _, check := range []struct {
		name string
		run  func() error
	}{
		{"go-files", files}, {"go-listing", listing}, {"go-border", border}, {"go-directory", directory},
		{"go-programs", programs}, {"go-goroutines", goroutines}, {"go-map", maps}, {"go-socket", socket},
	} {
		if wanted := os.Args[3:]; len(wanted) > 0 && !slices.Contains(wanted, check.name) {
			continue
		}
		here, there = filepath.Join(os.Args[1], check.name), filepath.Join(os.Args[2], check.name)
		err := errors.Join(os.Mkdir(here, 0o755), os.Mkdir(there, 0o755), os.Chdir(here))
		if err == nil {
			err = check.run()
		}
		if err != nil {
			failed = true
			fmt.Printf("FAILED %s %v\n", check.name, err)
		} else {
			fmt.Println("ok", check.name)
		}
	}
	if failed {
		os.Exit(1)
	}
}

func holds(path, expected string) error {
	content, err := os.ReadFile(path)
	if err == nil && string(content) != expected {
		err = fmt.Errorf("%s: %q, not %q", path, content, expected)
	}
	return err
}

func files() error {
	file, err := os.OpenFile("file", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	_, written := file.WriteString("content")
	_, at := file.WriteAt([]byte("C"), 0)
	found, statted := file.Stat()
	if err := errors.Join(written, at, statted, file.Sync(), file.Close()); err != nil {
		return err
	}
	if found.Size() != 7 || found.Mode().Perm() != 0o640 {
		return fmt.Errorf("%v %v", found.Size(), found.Mode())
	}
	if _, err := os.OpenFile("file", os.O_CREATE|os.O_EXCL, 0o640); !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("made twice: %v", err)
	}
	return errors.Join(holds("file", "Content"), os.Rename("file", "renamed"), os.Truncate("renamed", 3),
		holds("renamed", "Con"), os.Remove("renamed"))
}

func listing() error {
	for number := range 300 {
		if err := os.WriteFile(fmt.Sprintf("entry-%d", number), []byte("x"), 0o644); err != nil {
			return err
		}
	}
	count := 0
	err := filepath.WalkDir(here, func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			count++
		}
		return err
	})
	if err == nil && count != 300 {
		err = fmt.Errorf("%d entries", count)
	}
	return errors.Join(err, os.RemoveAll(here), os.Mkdir(here, 0o755))
}

func border() error {
	outside := filepath.Join(there, "file")
	err := errors.Join(os.WriteFile("file", []byte("inside"), 0o644), os.WriteFile(outside, []byte("outside"), 0o644),
		os.Symlink(outside, "link"), os.Symlink(filepath.Join(here, "file"), filepath.Join(there, "link")),
		holds("link", "outside"), holds(filepath.Join(there, "link"), "inside"))
	if err != nil {
		return err
	}
	if err := os.Rename("file", filepath.Join(there, "moved")); !errors.Is(err, syscall.EXDEV) {
		return fmt.Errorf("renamed over the border: %v", err)
	}
	from, opened := os.Open("file")
	to, made := os.Create(filepath.Join(there, "copy"))
	if err := errors.Join(opened, made); err != nil {
		return err
	}
	// By copy_file_range(2), or as that may not be possible otherwise.
	_, copied := io.Copy(to, from)
	return errors.Join(copied, to.Close(), from.Close(), holds(filepath.Join(there, "copy"), "inside"))
}

func directory() error {
	if err := errors.Join(os.MkdirAll("a/b", 0o755), os.Chdir("a/b")); err != nil {
		return err
	}
	found, err := os.Getwd()
	if err == nil && found != filepath.Join(here, "a/b") {
		err = fmt.Errorf("in %s", found)
	}
	root, opened := os.OpenRoot(here)
	if err := errors.Join(err, opened, os.Chdir(here)); err != nil {
		return err
	}
	if _, err := root.Open("a/../../x"); err == nil {
		return errors.New("above the root of os.Root")
	}
	return root.Close()
}

func programs() error {
	program, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile("program", program, 0o755)
	}
	if err != nil {
		return err
	}
	said, err := exec.Command("./program", "say", "by the tree").Output()
	if err == nil && string(said) != "by the tree\n" {
		err = fmt.Errorf("said %q", said)
	}
	if err != nil {
		return err
	}
	elsewhere := exec.Command(filepath.Join(here, "program"), "say", "elsewhere")
	elsewhere.Dir = there
	said, err = elsewhere.Output()
	if err == nil && string(said) != "elsewhere\n" {
		err = fmt.Errorf("said %q", said)
	}
	return err
}

func goroutines() error {
	var all sync.WaitGroup
	failures := make(chan error, 50)
	for number := range 50 {
		all.Add(1)
		go func() {
			defer all.Done()
			for round := range 10 {
				name, text := fmt.Sprintf("%d-%d", number, round), fmt.Sprint(number*round)
				err := errors.Join(os.WriteFile(name, []byte(text), 0o644), holds(name, text), os.Remove(name))
				if err != nil {
					failures <- err
					return
				}
			}
		}()
	}
	all.Wait()
	close(failures)
	return <-failures
}

func maps() error {
	if err := os.WriteFile("file", bytes.Repeat([]byte{'x'}, 5000), 0o644); err != nil {
		return err
	}
	file, err := os.OpenFile("file", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	content, err := syscall.Mmap(int(file.Fd()), 0, 5000, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return err
	}
	content[4999] = 'y'
	piece := make([]byte, 1)
	if _, err := file.ReadAt(piece, 4999); err != nil || piece[0] != 'y' {
		return fmt.Errorf("%q %v", piece, err)
	}
	return errors.Join(syscall.Munmap(content), file.Close())
}

func socket() error {
	listener, err := net.Listen("unix", "socket")
	if err != nil {
		return err
	}
	go func() {
		if connection, err := listener.Accept(); err == nil {
			_, _ = io.Copy(connection, connection)
			_ = connection.Close()
		}
	}()
	connection, err := net.Dial("unix", "socket")
	if err != nil {
		return err
	}
	_, sent := connection.Write([]byte("echo"))
	answer := make([]byte, 4)
	_, read := io.ReadFull(connection, answer)
	if err := errors.Join(sent, read, connection.Close(), listener.Close()); err != nil {
		return err
	}
	if string(answer) != "echo" {
		return fmt.Errorf("answered %q", answer)
	}
	return nil
}
