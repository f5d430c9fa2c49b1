package schema

import (
	"errors"
	"io"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrFenced means that another process holds the stream's lease: nothing was
// committed, and nothing may be until the lease is held again.
var ErrFenced = errors.New("another process holds the lease of this stream")

// ErrStored means that one of the records that a batch would copy is stored
// already, perhaps in an older revision: apply the batch carefully.
var ErrStored = errors.New("a record of this batch is stored already")

// ErrNoRows means that what was asked for is not stored.
var ErrNoRows = pgx.ErrNoRows

// Class says what a database error calls for.
type Class uint8

const (
	// Fatal: no retry and no other input would help: a missing table, a refused
	// login, a bug.
	Fatal Class = iota
	// Transient: the same transaction may pass later: the server restarts, is
	// full, or picked this transaction as a deadlock's victim.
	Transient
	// Data: the input cannot be stored; without it the rest can.
	Data
	// Fenced: the lease is lost.
	Fenced
)

// Classify reads a database error. It answers Transient for every loss of the
// connection.
func Classify(err error) Class {
	switch {
	case errors.Is(err, ErrFenced):
		return Fenced
	case errors.Is(err, ErrStored):
		return Transient
	}
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return classifyConnection(err)
	}
	switch pgErr.Code {
	case "WR001":
		return Fenced
	case "23514":
		if pgErr.Routine == "ExecPartitionCheckEmitError" { // the row's partition was made while it waited for another
			return Transient
		}
	case "54001", "54000": // stack depth, program limit: a record nested too deep or too large
		return Data
	case "55P03", "55006", "25P03", "25P04": // lock not available, object in use, idle or long transaction ended
		return Transient
	}
	switch pgErr.Code[:2] {
	case "22", "23", "21":
		return Data
	case "08", "40", "53", "57", "58":
		return Transient
	}
	return Fatal
}

// classifyConnection reads an error that did not come from the server itself.
func classifyConnection(err error) Class {
	var connectErr *pgconn.ConnectError
	var netErr net.Error
	switch {
	case errors.As(err, &connectErr), errors.As(err, &netErr),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		pgconn.SafeToRetry(err), pgconn.Timeout(err):
		return Transient
	}
	if err != nil && err.Error() == "conn closed" {
		return Transient
	}
	return Fatal
}
