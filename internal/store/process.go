package store

import (
	cryptorand "crypto/rand"
	"encoding/base32"
	"math/rand/v2"
	"strconv"
)

// A Process is the id of a Locker in wait queues, where it has 19 digits. The first
// digit is at least 4 if the process listens, and less if it only polls. 0 is no
// process, and no id is a token.
type Process uint64

const (
	firstProcess  = 5e18
	pollingOffset = 35e17 // the difference between the two ids of a process
)

// NewProcess returns a random id of a process that listens.
func NewProcess() Process { return firstProcess + Process(rand.Uint64N(2e18)) }

// Polling returns the id under which p waits while it cannot listen.
func (p Process) Polling() Process { return p - pollingOffset }

// CanListen reports whether p can be signalled.
func (p Process) CanListen() bool { return p >= firstProcess }

func (p Process) String() string { return strconv.FormatUint(uint64(p), 10) }

func (p Process) literal() string { return "_ascii'" + p.String() + "'" }

// NewOwnerID returns the id of one acquisition: the process, a dash, and 64 random
// bits from the kernel. A counter or a generator in the process would repeat when the
// process image is restored from a snapshot, and the statements would take the copy's
// request for one that they have granted. All ids have the same length, so that InnoDB
// updates the row in place.
func NewOwnerID(p Process) string {
	var random [8]byte
	cryptorand.Read(random[:])
	id := append(strconv.AppendUint(make([]byte, 0, 33), uint64(p), 10), '-')
	return string(ownerEncoding.AppendEncode(id, random[:]))
}

var ownerEncoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)
