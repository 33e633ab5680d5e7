package mysqltest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	// optionsVariable is the environment variable that has flags for every private server.
	optionsVariable = "MYSQLLOCK_SERVER_OPTIONS"

	// With requireTLS, a server refuses TCP connections without TLS.
	requireTLS = "--require-secure-transport=ON"
)

// allFlags returns the flags in the environment, followed by those of the server, without the flags for
// another kind: "mysql:--flag" is only for MySQL.
func (s *Server) allFlags() []string {
	product, _, _ := strings.Cut(s.Kind, "-")
	var flags []string
	for _, flag := range slices.Concat(strings.Fields(os.Getenv(optionsVariable)), s.flags) {
		kind, name, limited := strings.Cut(flag, ":--")
		switch {
		case !limited:
			flags = append(flags, flag)
		case kind == product:
			flags = append(flags, "--"+name)
		}
	}
	return flags
}

// initFlags returns the flags that MySQL must have both when it initialises its data directory and when
// it starts.
func (s *Server) initFlags() []string {
	return slices.DeleteFunc(s.allFlags(), func(flag string) bool { return !strings.HasPrefix(flag, "--lower-case-table-names") })
}

func (s *Server) requiresTLS() bool { return slices.Contains(s.allFlags(), requireTLS) }

// certificate returns the path of the file with the server's certificate and key.
func (s *Server) certificate() string { return filepath.Join(s.dir, "certificate.pem") }

// tlsFlags returns the flags for TLS. MariaDB before 11.4 does not generate a certificate.
func (s *Server) tlsFlags() []string {
	if !s.requiresTLS() {
		return nil
	}
	return []string{"--ssl-cert=" + s.certificate(), "--ssl-key=" + s.certificate()}
}

// certify generates the certificate of a server that requires TLS.
func (s *Server) certify() error {
	if !s.requiresTLS() {
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	for _, block := range []*pem.Block{{Type: "CERTIFICATE", Bytes: certificate}, {Type: "PRIVATE KEY", Bytes: private}} {
		if err := pem.Encode(&text, block); err != nil {
			return err
		}
	}
	return os.WriteFile(s.certificate(), text.Bytes(), 0o600)
}
