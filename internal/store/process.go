package store

import (
	cryptorand "crypto/rand"
	"encoding/base32"
	"math/rand/v2"
	"strconv"
)

// A Process is the id of a Locker, with 19 digits. In wait queues, the first digit shows what the
// process can do: less than 4, it only polls; 4 or more, it listens; 7 or more, a release may also
// grant it the row. 0 is no process. No id is a token.
type Process uint64

// A process has three ids in wait queues: the one that listens, and two that differ from it by these
// offsets.
const (
	firstProcess  = 5e18
	directOffset  = 2e18
	pollingOffset = 35e17
)

// NewProcess returns a random id of a process that listens.
func NewProcess() Process { return firstProcess + Process(rand.Uint64N(2e18)) }

// Polling returns the id under which p waits while it cannot listen.
func (p Process) Polling() Process { return p - pollingOffset }

// Direct returns the id under which p waits if a release may grant it the row.
func (p Process) Direct() Process { return p + directOffset }

// TakesGrants reports whether p is an id from Direct. If ReleaseToNext returns such an id, it has
// granted the row to that process.
func (p Process) TakesGrants() bool { return p >= firstProcess+directOffset }

// Listening returns the id under which p can be signalled. It returns a polling id unchanged.
func (p Process) Listening() Process {
	if p.TakesGrants() {
		p -= directOffset
	}
	return p
}

// Is reports whether id is one of the three ids of p. p must be the id that listens.
func (p Process) Is(id Process) bool { return id.Listening() == p || id == p.Polling() }

// CanListen reports whether p can be signalled.
func (p Process) CanListen() bool { return p >= firstProcess }

func (p Process) String() string { return strconv.FormatUint(uint64(p), 10) }

func (p Process) literal() string { return "_ascii'" + p.String() + "'" }

// NewOwnerID returns the id of one acquisition: the process, a dash, and 64 random bits from the
// kernel. A counter, or a generator in the process, would repeat ids if the process is restored from
// a snapshot; a statement would then mistake the copy's request for one that it has granted. All ids
// have the same length, so that InnoDB updates the row in place.
func NewOwnerID(p Process) string {
	id := append(strconv.AppendUint(make([]byte, 0, 33), uint64(p), 10), '-')
	return string(appendRandom(id))
}

// NewGrantID returns the random half of the owner id that a release writes when it grants the row. In
// such an id, an equals sign replaces the dash.
func NewGrantID() string { return string(appendRandom(make([]byte, 0, 13))) }

func appendRandom(id []byte) []byte {
	var random [8]byte
	cryptorand.Read(random[:])
	return ownerEncoding.AppendEncode(id, random[:])
}

// Granted reports whether an owner id is that of a grant by a release.
func Granted(owner string) bool { return len(owner) > 19 && owner[19] == '=' }

var ownerEncoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)
