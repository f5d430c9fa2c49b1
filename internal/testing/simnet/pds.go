package simnet

import (
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, &xrpcError{http.StatusRequestEntityTooLarge, "PayloadTooLarge", "request entity too large"}
	}
	return body, nil
}

var collectionName = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9-]*(\.[a-zA-Z0-9][a-zA-Z0-9-]*)+\.[a-zA-Z][a-zA-Z0-9]*$`)

// recordView is a record as servers return it.
type recordView struct {
	URI   string          `json:"uri"`
	CID   string          `json:"cid"`
	Value json.RawMessage `json:"value"`
}

func (r *record) view() recordView { return recordView{r.uri(), r.contentID(), r.value()} }

func (v *visit) getRecord() (any, error) {
	repo, name, rkey := v.query.Get("repo"), v.query.Get("collection"), v.query.Get("rkey")
	if repo == "" || rkey == "" || !collectionName.MatchString(name) {
		return nil, invalid("Error: Params must have the properties repo, collection and rkey")
	}
	p := v.index.actor(repo)
	if p == nil || p.status != "" {
		return nil, invalid("Could not find repo: %s", repo)
	}
	all := v.index.collection(p, name)
	i, known := searchRkey(all, rkey)
	if !known {
		return nil, &xrpcError{http.StatusBadRequest, "RecordNotFound", "Could not locate record: at://" + repo + "/" + name + "/" + rkey}
	}
	return all[i].view(), nil
}

func (v *visit) listRecords() (any, error) {
	limit, err := v.limit()
	if err != nil {
		return nil, err
	}
	repo, err := v.required("repo")
	if err != nil {
		return nil, err
	}
	name, err := v.required("collection")
	if err != nil {
		return nil, err
	}
	if !collectionName.MatchString(name) {
		return nil, invalid("Error: collection must be a valid nsid")
	}
	p := v.index.actor(repo)
	if p == nil || p.status != "" {
		return nil, invalid("Could not find repo: %s", repo)
	}
	out := &struct {
		Records []recordView `json:"records"`
		paging
	}{Records: []recordView{}, paging: paging{end: beforeAll}}
	all := v.index.collection(p, name)
	if v.flag("reverse") {
		out.end = strings.Repeat("z", 13)
	}
	for _, r := range v.records(all, limit) {
		out.Records = append(out.Records, r.view())
		out.Cursor = r.rkey // on the last page too
	}
	return out, nil
}

// records returns a page by rkey, descending, or ascending with reverse.
func (v *visit) records(all []*record, limit int) []*record {
	cursor := v.query.Get("cursor")
	at, known := searchRkey(all, cursor)
	if v.flag("reverse") {
		if known {
			at++
		}
		return all[at:min(at+limit, len(all))]
	}
	if cursor == "" {
		at = len(all)
	}
	page := slices.Clone(all[max(0, at-limit):at])
	slices.Reverse(page)
	return page
}

// describeRepo returns the account and the collections of its repository.
func (v *visit) describeRepo() (any, error) {
	repo, err := v.required("repo")
	if err != nil {
		return nil, err
	}
	p := v.index.actor(repo)
	if p == nil || p.status != "" {
		return nil, invalid("Could not find repo: %s", repo)
	}
	names := []string{}
	for name := range p.repo {
		if len(v.index.collection(p, name)) > 0 {
			names = append(names, name)
		}
	}
	if len(v.index.collection(p, follow)) > 0 && !slices.Contains(names, follow) { // the follows from before the log
		names = append(names, follow)
	}
	slices.Sort(names)
	return map[string]any{"handle": p.handle, "did": p.did, "didDoc": v.net.document(p), "collections": names, "handleIsCorrect": true}, nil
}

func (v *visit) latestCommit() (any, error) {
	p, err := v.repository()
	if err != nil {
		return nil, err
	}
	rev := v.rev(p)
	return map[string]string{"cid": cidFor(p.did + rev), "rev": rev}, nil
}

// rev returns the revision of a repository.
func (v *visit) rev(p *member) string {
	if p.rev == "" { // from before the log
		return tidOf(v.index.seeds.before.UnixMicro())
	}
	return p.rev
}

// repository returns the account of a sync call, which must be active.
func (v *visit) repository() (*member, error) {
	did, err := v.required("did")
	if err != nil {
		return nil, err
	}
	p := v.index.byDID[did]
	if p == nil {
		return nil, &xrpcError{http.StatusBadRequest, "RepoNotFound", "Could not find repo for DID: " + did}
	}
	switch p.status {
	case "":
		return p, nil
	case "deactivated":
		return nil, &xrpcError{http.StatusBadRequest, "RepoDeactivated", "Repo has been deactivated: " + did}
	case "deleted":
		return nil, &xrpcError{http.StatusBadRequest, "RepoNotFound", "Could not find repo for DID: " + did}
	}
	return nil, &xrpcError{http.StatusBadRequest, "RepoTakendown", "Repo has been taken down: " + did}
}

// carBody is a response that is a CAR and not JSON.
type carBody []byte

const carType = "application/vnd.ipld.car"

// getRepo returns the whole repository, signed with the account's current key.
// Follows from before the log have no blocks.
func (v *visit) getRepo() (any, error) {
	p, err := v.repository()
	if err != nil {
		return nil, err
	}
	r := &repository{did: p.did, key: v.net.keyOf(p.did, p.rotation)}
	var records []repoBlock
	v.index.collection(p, follow)
	for name, all := range p.repo {
		for _, one := range all {
			id := parseCID(one.contentID())
			r.tree = r.tree.put(name+"/"+one.rkey, id)
			if raw := recordBlock(one.value()); cidOfBlock(raw) == id {
				records = append(records, repoBlock{id, raw})
			}
		}
	}
	root, nodes := r.tree.write()
	r.data = root
	signed := r.signed(v.rev(p))
	return carBody(carOf(append(append([]repoBlock{signed}, nodes...), records...))), nil
}

// directory serves the document of a DID like the PLC directory.
func (n *Net) directory(w http.ResponseWriter, r *http.Request) {
	n.call("plc", w, r, func() (any, error) {
		did := r.PathValue("did")
		ix := n.indexNow()
		defer ix.mu.Unlock()
		p := ix.byDID[did]
		switch {
		case p == nil:
			return nil, &xrpcError{http.StatusNotFound, "NotFound", "DID not registered: " + did}
		case p.status == "deleted":
			return nil, &xrpcError{http.StatusGone, "Gone", "DID not available: " + did}
		}
		w.Header().Set("Content-Type", "application/did+ld+json")
		return n.document(p), nil
	})
}

func (n *Net) document(p *member) map[string]any {
	return map[string]any{
		"@context":    []string{"https://www.w3.org/ns/did/v1", "https://w3id.org/security/multikey/v1"},
		"id":          p.did,
		"alsoKnownAs": []string{"at://" + p.handle},
		"verificationMethod": []map[string]string{{"id": p.did + "#atproto", "type": "Multikey", "controller": p.did,
			"publicKeyMultibase": n.keyOf(p.did, p.rotation).multibase()}},
		"service": []map[string]string{{"id": "#atproto_pds", "type": "AtprotoPersonalDataServer", "serviceEndpoint": n.PDSURL()}},
	}
}
