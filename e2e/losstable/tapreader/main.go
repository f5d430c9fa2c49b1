// Command tapreader is the smallest honest consumer of tap: it writes the events that have arrived to Postgres, and
// acknowledges them after the commit. TAP is the address of tap's channel, DATABASE_URL the database. It ends at the first
// error, and is started again.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"

	"github.com/gorilla/websocket"

	"github.com/weir-social/weir/e2e/losstable/store"
)

// event is one message of tap.
type event struct {
	ID       uint64          `json:"id"`
	Record   *store.Change   `json:"record"`
	Identity json.RawMessage `json:"identity"`
}

// most is how many events one transaction writes at most.
const most = 500

func main() {
	ctx := context.Background()
	conn, err := store.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	socket, _, err := websocket.DefaultDialer.Dial(os.Getenv("TAP"), nil)
	if err != nil {
		log.Fatal(err)
	}
	arrived := make(chan event, most)
	go func() {
		for {
			var e event
			if err := socket.ReadJSON(&e); err != nil {
				log.Fatal(err)
			}
			arrived <- e
		}
	}()
	for {
		events := []event{<-arrived}
		for len(events) < most && len(arrived) > 0 {
			events = append(events, <-arrived)
		}
		var changes []store.Change
		for _, e := range events {
			if e.Record != nil {
				changes = append(changes, *e.Record)
				continue
			}
			var account struct{ DID, Status string }
			if err := json.Unmarshal(e.Identity, &account); err != nil {
				log.Fatal(err)
			}
			if account.Status == "deleted" {
				changes = append(changes, store.Change{DID: account.DID, Action: "gone"})
			}
		}
		if err := store.Apply(ctx, conn, changes...); err != nil {
			log.Fatal(err)
		}
		for _, e := range events {
			if err := socket.WriteJSON(map[string]any{"type": "ack", "id": e.ID}); err != nil {
				log.Fatal(err)
			}
		}
	}
}
