package wire

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"io"
)

// The commands that the proxy distinguishes.
const (
	comQuit             = 0x01
	comQuery            = 0x03
	comPing             = 0x0e
	comStmtPrepare      = 0x16
	comStmtExecute      = 0x17
	comStmtSendLongData = 0x18
	comStmtClose        = 0x19
)

// clientCompress is the capability flag in the client's first packet.
const clientCompress = 0x20

// A packet is one packet as the client sent it.
type packet struct {
	bytes   []byte
	command bool   // whether it is the first packet of a command
	name    byte   // the command, such as comQuery
	args    []byte // what follows the name
}

// A packetReader splits what a client sends into packets.
//
// A packet has a header of 4 bytes: 3 for its length, and 1 for its sequence number within the
// exchange. A client's packet has number 0 only if it begins an exchange, that is, a command; the
// handshake is begun by the server. Compression, if negotiated, starts after the handshake. From
// then on, packets are wrapped in compressed packets, whose header has the same 4 bytes, and 3 more
// for the uncompressed length, which is 0 if the content is too short to be compressed.
type packetReader struct {
	r             *bufio.Reader
	handshakeRead bool // the client's first packet was read
	compress      bool // compression was negotiated
	compressed    bool // compression has started
}

func (p *packetReader) next() (packet, error) {
	header, err := p.r.Peek(4)
	if err != nil {
		return packet{}, err
	}
	command := header[3] == 0
	p.compressed = p.compressed || p.compress && command
	size := 4
	if p.compressed {
		size = 7
	}
	raw := make([]byte, size+uint24(header))
	if _, err := io.ReadFull(p.r, raw); err != nil {
		return packet{}, err
	}
	if !p.handshakeRead {
		p.handshakeRead = true
		p.compress = len(raw) > 4 && raw[4]&clientCompress != 0
	}
	if !command {
		return packet{bytes: raw}, nil
	}

	content := raw
	if p.compressed {
		if content, err = uncompress(raw); err != nil {
			return packet{}, err
		}
	}
	if len(content) < 5 {
		return packet{bytes: raw}, nil
	}
	return packet{bytes: raw, command: true, name: content[4], args: content[5:]}, nil
}

// uncompress returns the plain packets in a compressed one.
func uncompress(raw []byte) ([]byte, error) {
	if uint24(raw[4:]) == 0 {
		return raw[7:], nil
	}
	r, err := zlib.NewReader(bytes.NewReader(raw[7:]))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// ping is a packet with a command that changes nothing and has a reply of one packet.
var ping = []byte{1, 0, 0, 0, comPing}

// errorPacket returns the packet of a reply that reports an error.
func errorPacket(number uint16, message string) []byte {
	content := append([]byte{0xff, byte(number), byte(number >> 8)}, "#HY000"+message...)
	return append([]byte{byte(len(content)), byte(len(content) >> 8), 0, 1}, content...)
}

func uint24(b []byte) int { return int(b[0]) | int(b[1])<<8 | int(b[2])<<16 }
