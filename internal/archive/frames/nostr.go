package frames

import (
	"time"

	"github.com/weir-social/weir/consumer"
	wire "github.com/weir-social/weir/consumer/nostr"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/nostr"
)

// StripNostr returns a Strip for Nostr events, by the dates of their authors, for one goroutine. Requests to
// vanish stay. Requests for deletions stay too, unless their author has vanished.
func StripNostr() archive.Strip {
	decodes := wire.Wire(nil, nil)
	var message consumer.Message
	return func(m archive.Manifest, record []byte, goes func(archive.Said) bool) [][]byte {
		e, err := nostr.DecodeNotepack(record)
		if err != nil || e.Kind == nostr.KindVanish || e.CheckID() != nil {
			return [][]byte{record}
		}
		said := archive.Said{Author: nostr.DID(e.PubKey), At: time.Unix(e.CreatedAt, 0)}
		if e.Kind != nostr.KindDeletion {
			decodes.Decode(record, time.Time{}, &message) // at the zero time, nothing has expired
			if len(message.Events) == 1 {
				said = saidBy(&message.Events[0], said.At)
			}
		}
		byID := said
		byID.Collection = nostr.AnyKind
		if goes(said) || nostr.DeletedByID(e.Kind) && goes(byID) {
			return nil
		}
		return [][]byte{record}
	}
}

// ExportNostr returns the JSON of an archived Nostr event.
func ExportNostr(record []byte) []byte {
	e, err := nostr.DecodeNotepack(record)
	if err != nil {
		return record
	}
	return e.AppendJSON(nil)
}
