package schema

import (
	"errors"
	"io"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrFenced means that another process holds the stream's lease. Nothing was
// committed, and nothing can be until this process has the lease again.
var ErrFenced = errors.New("another process holds the lease of this stream")

// ErrStored means that a record that a batch would copy is already stored, perhaps in
// an older revision. Apply the batch again, with Careful set.
var ErrStored = errors.New("a record of this batch is stored already")

// ErrNoRows means that the requested row does not exist.
var ErrNoRows = pgx.ErrNoRows

// Class says how to react to a database error.
type Class uint8

const (
	// Fatal: no retry and no other input can help. Examples: a missing table, a
	// refused login, a bug.
	Fatal Class = iota
	// Transient: the same transaction may succeed later. Examples: the server
	// restarts, is full, or ended this transaction to break a deadlock.
	Transient
	// Data: the input cannot be stored; the rest can.
	Data
	// Fenced: the lease is lost.
	Fenced
)

// Classify returns the class of a database error. A lost connection is Transient.
func Classify(err error) Class {
	switch {
	case errors.Is(err, ErrFenced):
		return Fenced
	case errors.Is(err, ErrStored), errors.Is(err, ErrBusy):
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
		if pgErr.Routine == "ExecPartitionCheckEmitError" { // the row's partition was made while the statement ran
			return Transient
		}
	case "54001", "54000": // stack depth, program limit: a record is nested too deep or too large
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

// classifyConnection classifies an error that did not come from the server.
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
