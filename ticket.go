package mysqllock

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// A Ticket represents a lock that [Lock.Detach] has detached. It is opaque text of letters,
// digits, - and _, which is safe in a URL, in JSON, in a header and in a queue message. Any process
// that has the Ticket can attach the lock, so do not publish it.
type Ticket string

// A ticket is the content of a Ticket.
type ticket struct {
	claim   store.Claim // the row, and its owner id while it is detached
	token   uint64      // of the hold; below first if the hold became shared, or if it continues an older range (see firstToken)
	first   uint64      // the token in the row, which begins its range
	minHold time.Duration
}

// ticketVersion is the first byte of a Ticket. A change of the format needs another one.
const ticketVersion = "1"

// encode returns the version, followed in base64 by a CRC-32 of the rest, the owner id, the first
// token of the range, the hold's token, the minimum hold in microseconds, and the key of the row.
func (t ticket) encode() Ticket {
	b := append(make([]byte, 4), t.claim.Owner...)
	b = binary.AppendUvarint(b, t.first)
	b = binary.AppendUvarint(b, t.token)
	b = binary.AppendUvarint(b, uint64(t.minHold.Microseconds()))
	b = append(b, t.claim.Name...)
	binary.BigEndian.PutUint32(b, crc32.ChecksumIEEE(b[4:]))
	return Ticket(ticketVersion + base64.RawURLEncoding.EncodeToString(b))
}

var errNoTicket = errors.New("not a ticket from Lock.Detach, or not all of one")

func (t Ticket) parse() (parsed ticket, err error) {
	text, ok := strings.CutPrefix(string(t), ticketVersion)
	if !ok {
		return ticket{}, fmt.Errorf("%w, or one of another version of this library", errNoTicket)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) < 4 || binary.BigEndian.Uint32(b) != crc32.ChecksumIEEE(b[4:]) {
		return ticket{}, errNoTicket
	}
	const idLen = 33
	if b = b[4:]; len(b) < idLen || !store.IsTicketID(string(b[:idLen])) {
		return ticket{}, errNoTicket
	}
	parsed.claim.Owner = string(b[:idLen])
	r := bytes.NewReader(b[idLen:])
	var numbers [3]uint64
	for i := range numbers {
		if numbers[i], err = binary.ReadUvarint(r); err != nil {
			return ticket{}, errNoTicket
		}
	}
	key := b[len(b)-r.Len():]
	parsed.claim.Name = string(key)
	parsed.first, parsed.token = numbers[0], numbers[1]
	const maxMicros = uint64(1<<63-1) / uint64(time.Microsecond)
	if numbers[1] >= numbers[0] && numbers[1]-numbers[0] >= store.TokenRange || numbers[2] > maxMicros || checkName(store.NameOf(string(key))) != nil {
		return ticket{}, errNoTicket
	}
	parsed.minHold = time.Duration(numbers[2]) * time.Microsecond
	return parsed, nil
}
