// Command naive reads Jetstream as most programs do: it writes each event to Postgres, saves its cursor every ten
// seconds, and connects again where it saved it. JETSTREAM is the address with the filter, DATABASE_URL the database. It
// ends at the first error of the connection or the database, and is started again.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/gorilla/websocket"
	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/e2e/losstable/store"
)

type event struct {
	DID    string `json:"did"`
	TimeUS int64  `json:"time_us"`
	Commit *struct {
		Operation string `json:"operation"`
		store.Change
	} `json:"commit"`
	Account *struct {
		Status string `json:"status"`
	} `json:"account"`
}

func main() {
	ctx := context.Background()
	conn, err := store.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	cursor := int64(1) // the first time, everything that the server has
	if err := conn.QueryRow(ctx, `SELECT at FROM cursor`).Scan(&cursor); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		log.Fatal(err)
	}
	socket, _, err := websocket.DefaultDialer.Dial(os.Getenv("JETSTREAM")+"&cursor="+strconv.FormatInt(cursor, 10), nil)
	if err != nil {
		log.Fatal(err)
	}
	saved := time.Now()
	for {
		_, frame, err := socket.ReadMessage()
		if err != nil {
			log.Fatal(err)
		}
		var e event
		if json.Unmarshal(frame, &e) != nil {
			log.Print("skipped a frame")
			continue
		}
		var changes []store.Change
		switch {
		case e.Commit != nil:
			c := e.Commit.Change
			c.DID, c.Action = e.DID, e.Commit.Operation
			changes = append(changes, c)
		case e.Account != nil && e.Account.Status == "deleted":
			changes = append(changes, store.Change{DID: e.DID, Action: "gone"})
		}
		if err := store.Apply(ctx, conn, changes...); err != nil {
			log.Fatal(err)
		}
		if time.Since(saved) >= 10*time.Second {
			const save = `INSERT INTO cursor VALUES (true, $1) ON CONFLICT (one) DO UPDATE SET at = excluded.at`
			if _, err := conn.Exec(ctx, save, e.TimeUS); err != nil {
				log.Fatal(err)
			}
			saved = time.Now()
		}
	}
}
