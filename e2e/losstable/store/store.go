// Package store is what the two readers of the loss table share: a table of posts that holds each one once, and a
// log of what was handed to the application, in the same transaction.
package store

import (
	"context"
	"encoding/json"
	"os"

	"github.com/jackc/pgx/v5"
)

// Change is what happened to a record.
type Change struct {
	DID        string          `json:"did"`
	Collection string          `json:"collection"`
	Rkey       string          `json:"rkey"`
	Action     string          `json:"action"` // create, update, delete; gone: the account is deleted
	CID        string          `json:"cid"`
	Record     json.RawMessage `json:"record"`
}

// Open connects to DATABASE_URL and creates the tables.
func Open(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return nil, err
	}
	_, err = conn.Exec(ctx, `
CREATE TABLE IF NOT EXISTS records (did text, collection text, rkey text, cid text NOT NULL, record jsonb,
    PRIMARY KEY (did, collection, rkey));
CREATE TABLE IF NOT EXISTS handed (did text NOT NULL, collection text NOT NULL, rkey text NOT NULL, action text NOT NULL);
CREATE TABLE IF NOT EXISTS cursor (one bool PRIMARY KEY, at bigint NOT NULL)`)
	return conn, err
}

// Apply writes changes in one transaction. To apply one twice changes no record.
func Apply(ctx context.Context, conn *pgx.Conn, changes ...Change) error {
	batch := &pgx.Batch{}
	for _, c := range changes {
		switch c.Action {
		case "create", "update":
			batch.Queue(`INSERT INTO records (did, collection, rkey, cid, record) VALUES ($1, $2, $3, $4, $5)
				ON CONFLICT (did, collection, rkey) DO UPDATE SET cid = excluded.cid, record = excluded.record`,
				c.DID, c.Collection, c.Rkey, c.CID, c.Record)
		case "delete":
			batch.Queue(`DELETE FROM records WHERE did = $1 AND collection = $2 AND rkey = $3`, c.DID, c.Collection, c.Rkey)
		case "gone":
			batch.Queue(`DELETE FROM records WHERE did = $1`, c.DID)
			continue
		}
		batch.Queue(`INSERT INTO handed (did, collection, rkey, action) VALUES ($1, $2, $3, $4)`, c.DID, c.Collection, c.Rkey, c.Action)
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return tx.SendBatch(ctx, batch).Close() })
}
