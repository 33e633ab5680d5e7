package store

import (
	cryptorand "crypto/rand"
	"encoding/base32"
	"math/rand/v2"
	"strconv"
)

// A process is the id of a Locker in the lists of those who wait, where it has 19
// digits: the first is at least 4 if it listens, less if it can only look. 0 is
// nobody, and no id is a token.
type Process uint64

const (
	firstProcess  = 5e18
	pollingOffset = 35e17 // is taken off the id of one who can only look
)

func NewProcess() Process { return firstProcess + Process(rand.Uint64N(2e18)) }

func (p Process) Polling() Process { return p - pollingOffset }

func (p Process) CanListen() bool { return p >= firstProcess }

func (p Process) String() string { return strconv.FormatUint(uint64(p), 10) }

func (p Process) literal() string { return "_ascii'" + p.String() + "'" }

// newOwnerID returns the id of one acquisition: the process, a dash, and 64 bits
// from the kernel. Anything that a process keeps itself, a counter or the state of
// a generator, repeats when its image is restored from a snapshot, and the
// statements would take the copy's request for one that they granted before. All
// ids have one length: a row that grows or shrinks is written anew.
func NewOwnerID(p Process) string {
	var random [8]byte
	cryptorand.Read(random[:])
	id := append(strconv.AppendUint(make([]byte, 0, 33), uint64(p), 10), '-')
	return string(ownerEncoding.AppendEncode(id, random[:]))
}

var ownerEncoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)
