// Package records reads the stored records of any collection: single records and
// lists, references between them, and texts. It also makes the SQL views of records.
// It writes nothing else.
//
// Records of accounts that are not active, or not shown to strangers, are left out.
package records

import (
	"errors"

	"github.com/weir-social/weir/schema"
)

// DB runs queries: a pool or a transaction.
type DB = schema.DB

// ErrCursor means that a cursor is invalid, or belongs to another list.
var ErrCursor = errors.New("the cursor is invalid, or belongs to another list")

// shown is a condition: the account of this DID is active, and shown to strangers.
func shown(did string) string {
	return ` NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = ` + did + ` AND a.status <> 'active') AND NOT` + schema.Withheld(did)
}
