package feeds

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// readKey returns the key of this instance, and when it was made.
func readKey(ctx context.Context, db schema.DB) ([]byte, time.Time, error) {
	type row struct {
		Key  []byte
		Made time.Time
	}
	found, err := schema.One(ctx, db, "read the key of this instance", pgx.RowToStructByPos[row], `SELECT key, made_at FROM instance_key`)
	return found.Key, found.Made, err
}

// derive returns a UUID, version 8 of RFC 9562. Only someone with the key can tell what
// it was derived from.
func derive(key []byte, kind, name string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(kind + "\x00" + name)) // it never fails
	id := mac.Sum(nil)[:16]
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	text := hex.EncodeToString(id)
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}

// UUID returns the id of a feed with a name.
func (f Feed) UUID(name string) string { return derive(f.key, "feed", name) }
