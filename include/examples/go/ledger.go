// A ledger in a volume: `ledger IMAGE` adds an entry, durably, and tells how many there are.
//
//	go build
//
// A goroutine moves between threads, and the library keeps its last sentence per thread: lock the thread from a call to
// the question why it has failed, as `try` does.
package main

/*
#cgo pkg-config: syncline
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <syncline/syncline.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"
)

var errMissing = errors.New("no such file")

// try runs one call of the library; its result, or its sentence as an error.
func try(call func() C.int64_t) (int64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	switch result := call(); {
	case result == -C.ENOENT:
		return 0, errMissing
	case result < 0:
		return 0, errors.New(C.GoString(C.syncline_last_error()))
	default:
		return int64(result), nil
	}
}

func open(image string) (*C.syncline_volume, error) {
	name := C.CString(image)
	defer C.free(unsafe.Pointer(name))
	var volume *C.syncline_volume
	_, err := try(func() C.int64_t { return C.int64_t(C.syncline_volume_open(name, nil, &volume)) })
	if err == errMissing {
		var create C.struct_syncline_create_options
		create.size = C.size_t(unsafe.Sizeof(create))
		create.volume_bytes = 64 << 20
		_, err = try(func() C.int64_t { return C.int64_t(C.syncline_volume_create(name, &create, nil, &volume)) })
	}
	return volume, err
}

// add appends an entry and returns where it begins, when it is durable.
func add(volume *C.syncline_volume, entry []byte) (int64, error) {
	name := C.CString("/ledger")
	defer C.free(unsafe.Pointer(name))
	var file *C.syncline_file
	flags := C.int(C.O_WRONLY | C.O_CREAT | C.O_APPEND)
	if _, err := try(func() C.int64_t { return C.int64_t(C.syncline_open(volume, name, flags, 0o644, &file)) }); err != nil {
		return 0, err
	}
	defer C.syncline_file_close(file)
	var at C.int64_t
	data, length := unsafe.Pointer(&entry[0]), C.size_t(len(entry))
	_, err := try(func() C.int64_t { return C.int64_t(C.syncline_file_append(file, data, length, &at)) })
	if err != nil {
		return 0, err
	}
	_, err = try(func() C.int64_t { return C.int64_t(C.syncline_file_sync(file)) })
	return int64(at), err
}

func run() error {
	if len(os.Args) != 2 {
		return errors.New("usage: ledger IMAGE")
	}
	volume, err := open(os.Args[1])
	if err != nil {
		return err
	}
	entry := []byte("42 coins\n")
	at, err := add(volume, entry)
	if err != nil {
		C.syncline_volume_close(volume)
		return err
	}
	fmt.Printf("entries: %d\n", at/int64(len(entry))+1)
	_, err = try(func() C.int64_t { return C.int64_t(C.syncline_volume_close(volume)) })
	return err
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
